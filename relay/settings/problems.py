"""What is wrong with a configuration, where it is, and how to correct it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic import ValidationError

from relay.domain.errors import ConfigurationError
from relay.settings.section import Section, section_at

KeyPath = tuple[str, ...]
Origins = Mapping[KeyPath, str]


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """One problem: the key at fault, what is wrong with it, and what would be right."""

    path: KeyPath
    message: str
    hint: str | None = None


def from_pydantic(error: ValidationError, root: type[Section]) -> Iterator[SettingProblem]:
    """Translate pydantic's findings. Values are never repeated: they may be secrets."""
    for found in error.errors(include_url=False, include_input=False, include_context=False):
        path = tuple(str(part) for part in found["loc"])
        if found["type"] == "extra_forbidden":
            yield SettingProblem(path, "unknown key", _did_you_mean(path, root))
        elif found["type"] == "missing":
            yield SettingProblem(path, "is required", _how_to_give(path))
        elif found["type"] in ("model_type", "model_attributes_type", "dict_type"):
            yield SettingProblem(path, "must be a table", "a variable gives one key each: RELAY_CONTEXTS__SEA__…")
        else:
            yield SettingProblem(
                path, found["msg"].removeprefix("Value error, ").replace("Input should", "should")
            )


def _how_to_give(path: KeyPath) -> str:
    variable = "RELAY_" + "__".join(path).upper().replace("-", "_")
    common = ", or DATABASE_URL for every context" if path[-1] == "database_url" else ""
    return f"set it in relay.toml or as {variable}{common}"


def _did_you_mean(path: KeyPath, root: type[Section]) -> str | None:
    """Suggest a known key of the table that holds the unknown key."""
    known = section_at(root, path[:-1]).writable()
    close = get_close_matches(path[-1], known, n=1)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"


def origin_of(path: KeyPath, origins: Origins) -> str | None:
    """Where a key comes from: its own line or variable, else the origin of the table that lacks it."""
    for length in range(len(path), 0, -1):
        table = path[:length]
        if found := origins.get(table):
            return found
        # A table may have no line of its own: [a.b] declares a.
        if length > 1 and (inside := [key for key in origins if key[:length] == table]):
            return origins[inside[0]]
    return None


def refuse(problems: Sequence[SettingProblem], origins: Origins) -> ConfigurationError:
    """Make one error from all problems, each with the line or variable to correct."""
    lines = []
    for problem in problems:
        where = origin_of(problem.path, origins)
        lines.append(f"{where + ': ' if where else ''}{'.'.join(problem.path)}: {problem.message}")
    if len(problems) == 1:
        return ConfigurationError(lines[0], field=".".join(problems[0].path) or None, hint=problems[0].hint)
    shown = (f"{line} ({p.hint})" if p.hint else line for line, p in zip(lines, problems, strict=True))
    return ConfigurationError(f"{len(problems)} problems:" + "".join(f"\n  {line}" for line in shown))
