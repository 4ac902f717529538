"""docs/reference/settings.md: all keys of relay.toml, made of the model and of settings.toml beside this file."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from relay.settings import Settings, effective, load_settings
from relay.settings.section import Section
from relay.settings.values import format_duration, format_size

MEANINGS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
#: Their keys are those of ``stream``.
LIKE_STREAM = {"contexts.NAME.streams.NAME", "contexts.NAME.dlq"}
#: All sections, with as little as they need.
LEAST = """\
[contexts.thename]
database_url = "postgresql://db/thename"
[contexts.thename.queries]
module = "thename"
[[contexts.thename.routes]]
topics = ["thename.event.a"]
stream = "THENAME_EVENTS"
[contexts.thename.subscriptions.thename]
stream = "THENAME_EVENTS"
filter_subject = "thename.event.>"
handler = "http://h/handle"
[ops.users.thename]
token = "0123456789abcdef"
"""
HEAD = """\
# Settings

All keys of `relay.toml`. Any key may be set by its variable instead, which wins over the file; an empty variable
counts as not set. Each section says how its variables begin: there `KEY` is the key and `NAME` the name of the
context or subscription, both in capitals, the name with `_` for `-`.
`relay config` shows each value that holds, and where it comes from. A secret may be in a file: the key with
`_file` behind it, or the variable with `_FILE`. In a text of the file `${NAME:-default}` stands for a variable.
`RELAY_CONFIG` names another file than `relay.toml`.

A *duration* is a number of seconds, or a text such as `100ms`, `1.5s`, `1h30m`, `7d`, `3y`. A *size* is a number
of bytes, or a text such as `64KB`, `10GB`. A *list* is a list, or a text with commas. A value without a
unit is a text. A key without a default is not set, unless it is *required*.

<!-- Made of relay/settings/model.py and docsite/settings.toml: python -m docsite.reference -->
"""
#: A limit that says nothing: the largest number there is.
NO_LIMIT = 2**63 - 1


def section_of(annotation: Any) -> type[Section] | None:
    """Return the table that a field holds, itself or in a list or mapping."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, Section) else None
    return next(filter(None, map(section_of, get_args(annotation))), None)


def sections(model: type[Section] = Settings, path: str = "") -> Iterator[tuple[str, type[Section]]]:
    """The tables of relay.toml, each with its model."""
    yield path, model
    for key, name in model.writable().items():
        annotation = model.model_fields[name].annotation
        if (inner := section_of(annotation)) is not None:
            below = f"{path}.{key}".lstrip(".") + (".NAME" if get_origin(annotation) is dict else "")
            yield from sections(inner, below)


def keys(model: type[Section]) -> dict[str, Any]:
    """The keys of a table that are no tables, each with its field."""
    fields = {key: model.model_fields[name] for key, name in model.writable().items()}
    return {key: field for key, field in fields.items() if section_of(field.annotation) is None}


def defaults() -> dict[str, str]:
    """The default of each key, as it holds when nothing is set."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "relay.toml"
        file.write_text(LEAST)
        rows = [row for row in effective(load_settings(file, {})) if row[2] == "default"]
    return {_named(path).replace(".0.", "."): _named(value) for path, value, _ in rows}


def _named(text: str) -> str:
    return text.replace("thename", "NAME").replace("THENAME", "NAME")


def unit(key: str, field: Any) -> str:
    """Say what the value is, and its limits."""
    kind = str(field.annotation)
    show: Callable[[Any], str]
    if "datetime.datetime" in kind:
        return "`beginning`, `now`, time"
    if "timedelta" in kind:
        found, show = "duration", format_duration
    elif key.endswith("_bytes"):
        found, show = "size", format_size
    else:
        found, show = "", str
        words = {"tuple": "list", "bool": "true or false", "int": "number", "Path": "path", "dict": "table"}
        found = next((word for name, word in words.items() if name in kind), found)
    words = {"ge": "from", "le": "to", "lt": "below"}
    limits = [(words[name], getattr(it, name)) for it in field.metadata for name in words if hasattr(it, name)]
    shown = [f"{word} {show(limit)}" for word, limit in limits if limit != NO_LIMIT]
    return " ".join(filter(None, [found, *shown]))


def page() -> str:
    """The text of the page."""
    known, parts = defaults(), [HEAD]
    for path, model in sections():
        if path in LIKE_STREAM:
            continue
        meanings = MEANINGS[path]
        parts.append(f"## {f'`[{path}]`' if path else 'At the top'}\n\n{meanings['']}\n")
        if not keys(model):
            continue
        if not path.endswith("routes"):
            parts.append(f"Variables: `RELAY_{path.upper().replace('.', '__')}{'__' if path else ''}KEY`.\n")
        rows = ["| Key | Meaning | Default; unit |", "|---|---|---|"]
        for key, field in keys(model).items():
            where = f"{path}.{key}".lstrip(".")
            default = "required" if field.is_required() and where not in known else known.get(where, "none")
            given = {"none": "", "": "", "required": "required"}.get(default, f"`{default}`")
            value = "; ".join(filter(None, [given, unit(key, field)]))
            rows.append(f"| `{key}` | {meanings[key]} | {value} |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)
