"""docs/reference/cli.md, from the commands themselves."""

from __future__ import annotations

import enum
import typing
from collections.abc import Iterator
from typing import Any

import typer

from relay.cli import create_app

HEAD = """\
# The command `relay`

Written from the commands: `relay COMMAND --help` says the same of the release that you have installed. Every
command reads `relay.toml` and the environment. An error ends it with status 1 and one line on standard error:
`error CODE: message (what to do)`. The [codes](errors.md) are stable.
"""
#: In a checkout only.
ONLY_IN_A_CHECKOUT = "chaos"


def page() -> str:
    """The whole page."""
    root = typer.main.get_command(create_app())
    return "\n".join([HEAD, *_sections(root, "relay")]).rstrip() + "\n"


def _sections(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        place = f"{path} {name}"
        yield f"{'#' * (place.count(' ') + 1)} `{place}`\n"
        yield _text(command.help) + "\n"
        if name == ONLY_IN_A_CHECKOUT:
            yield "It is in a checkout only, and in no package.\n"
        if hasattr(command, "commands"):
            yield from _sections(command, place)
            continue
        yield f"```console\n{_usage(command, place)}\n```\n"
        rows = [_row(it) for it in command.params if not getattr(it, "hidden", False) and it.name != "help"]
        if rows:
            yield "\n".join(["| Argument or option | Meaning |", "|---|---|", *rows]) + "\n"


def _usage(command: Any, place: str) -> str:
    words = [place]
    arguments = [it for it in command.params if not it.opts[0].startswith("-")]
    for it in arguments:
        word = it.name.strip("_").upper() + ("…" if it.nargs == -1 else "")
        words.append(word if it.required else f"[{word}]")
    if len(arguments) < len(command.params):
        words.append("[OPTIONS]")
    return " ".join(words)


def _row(it: Any) -> str:
    is_option = it.opts[0].startswith("-")
    names = [*it.opts, *getattr(it, "secondary_opts", [])] if is_option else [it.name.strip("_").upper()]
    kind = _kind(it)
    value = "" if not is_option or getattr(it, "is_flag", False) else f" {kind}"
    told = [_text(it.help)]
    if choices := _choices(it):
        told.append("One of " + ", ".join(f"`{choice}`" for choice in choices) + ".")
    if it.required and is_option:
        told.append("Required.")
    if getattr(it, "multiple", False):
        told.append("May be repeated.")
    if (default := _default(it)) is not None:
        told.append(f"Default: `{default}`.")
    names_told = ", ".join(f"`{name}{value}`" for name in names)
    return f"| {names_told} | {' '.join(part for part in told if part)} |".replace("\n", " ")


def _annotation(it: Any) -> Any:
    found = it.type_descriptor.annotation
    inner = typing.get_args(found)
    return inner[0] if typing.get_origin(found) is list and inner else found


def _choices(it: Any) -> list[str]:
    found = _annotation(it)
    return [str(one.value) for one in found] if isinstance(found, type) and issubclass(found, enum.Enum) else []


def _kind(it: Any) -> str:
    if it.metavar:
        return str(it.metavar)
    known = {int: "NUMBER", float: "NUMBER"}
    return known.get(_annotation(it), it.name.strip("_").upper())


def _default(it: Any) -> str | None:
    value = it.default
    if callable(value) or value in (None, False, [], (), "") or not it.show_default:
        return None
    if value is True:
        return it.opts[0] if getattr(it, "secondary_opts", None) else None
    return str(value.value if isinstance(value, enum.Enum) else value)


def _text(help_text: str | None) -> str:
    text = " ".join((help_text or "").replace("``", "`").split())
    return text.replace("|", "\\|").replace("<", "&lt;")
