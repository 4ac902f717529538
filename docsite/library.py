"""docs/reference/python.md, from the docstrings of what applications import."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

#: What an application imports: in which words a reader looks for it, and the page with examples.
MODULES: Final = {
    "relay": ("Events: write them in your transaction", "write-events"),
    "consumer.handlers": ("Handlers: Python functions for events and commands", "python-handlers"),
    "tasks": ("Tasks: work for later", "tasks"),
    "relay.cron": ("Cron jobs", "scheduling"),
    "relay.handler": ("Handler services: the HTTP contract as a dependency", "http-handlers"),
    "relay.bus": ("Commands, queries and the unit of work", "commands"),
    "relay.tracing": ("Spans: OpenTelemetry in your service", "tracing"),
}
HEAD = """\
# The Python library

Written from the docstrings of what applications import; `help(relay.Outbox)`, or your editor, shows the rest. A
name that is not on this page is internal, and may change in any release. [Errors](errors.md) and
[`relay.testing`](../how-to/test-without-servers.md) have pages of their own.
"""
#: Packages whose objects are no values that a reader could write.
OURS = {"relay", "tasks", "consumer", "scheduler"}
#: A default that prints an address, or the repr of an object.
UNREADABLE = re.compile(r"<[^<>]*(?: object)? at 0x[0-9a-f]+>|<object[^<>]*>|<factory>")
#: The type of an id, as its annotation prints with all that pydantic needs.
ID = re.compile(r"(?:typing\.)?Annotated\[uuid\.UUID \| str, PlainValidator\([^()]*\)\]")


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_modules()]).rstrip() + "\n"


def _modules() -> Iterator[str]:
    described: set[int] = set()
    for name, (title, page) in MODULES.items():
        module = importlib.import_module(name)
        yield f"## {title}: `{name}`\n"
        yield f"{_sentence(module.__doc__)} [Examples](../how-to/{page}.md).\n"
        names = sorted(module.__all__, key=lambda it: (it.isupper(), it.lower()))
        values = {public: getattr(module, public) for public in names}
        for public, value in values.items():
            if id(value) not in described:
                yield from _entry(public, value)
        if again := [public for public, value in values.items() if id(value) in described]:
            yield "Also, as described above: " + ", ".join(f"`{public}`" for public in again) + ".\n"
        described |= {id(value) for value in values.values() if not _is_error(value)}
        if errors := [name for name in names if _is_error(getattr(module, name))]:
            yield "Errors: " + ", ".join(f"`{name}`" for name in errors) + ".\n"


def _entry(name: str, value: Any) -> Iterator[str]:
    if not (inspect.isclass(value) or inspect.isfunction(value)) or _is_error(value):
        return
    yield f"### `{name}`\n"
    if signature := _signature(name, value):
        yield f"```python\n{signature}\n```\n"
    if doc := _own_doc(value):
        yield _told(doc) + "\n"
    if inspect.isclass(value):
        yield from _members(value)


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def _members(kind: type) -> Iterator[str]:
    for name, member in vars(kind).items():
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if name.startswith("_") or not getattr(plain, "__doc__", None):
            continue
        if isinstance(plain, property):
            yield f"- **`{name}`**: {_sentence(plain.__doc__)}"
        elif inspect.isfunction(plain):
            given = list(inspect.signature(plain).parameters)[0 if isinstance(member, staticmethod) else 1 :]
            yield f"- **`{name}({', '.join(given)})`**: {_sentence(plain.__doc__)}"
    yield ""


def _own_doc(value: Any) -> str | None:
    """The docstring that somebody wrote, and not what a dataclass makes up."""
    said = value.__doc__ if not inspect.isclass(value) else vars(value).get("__doc__")
    return None if said and said.startswith(f"{value.__name__}(") else said


def _signature(name: str, value: Any) -> str:
    """How it is called; nothing where that says nothing, as of errors, enumerations and protocols."""
    if inspect.isclass(value) and issubclass(value, BaseException | tuple | enum.Enum):
        return ""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [_shown(it) for it in found.parameters.values()]
    text = UNREADABLE.sub("…", str(found.replace(parameters=parameters))).replace("'", '"')
    text = ID.sub("Id", text).replace("Optional[Id]", "Id | None")
    text = re.sub(r'(?<=: )"([^"]*)"|(?<=-> )"([^"]*)"', lambda it: it[1] or it[2], text)
    if inspect.isclass(value):
        text = text.removesuffix(" -> None")
    if text in ("()", "(*args, **kwargs)"):
        return ""
    return f"{name}{text}" if len(name + text) <= 100 else _folded(name, text)


class _Object:
    """In place of a default that holds what has been registered so far."""

    def __repr__(self) -> str:
        return "…"


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    own = type(parameter.default).__module__.partition(".")[0] in OURS
    return (
        parameter.replace(default=_Object()) if own and not isinstance(parameter.default, enum.Enum) else parameter
    )


def _folded(name: str, text: str) -> str:
    """One parameter on a line."""
    inner, _, answer = text[1:].rpartition(")")
    depth, parts = 0, [""]
    for sign in inner:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return f"{name}(\n" + "".join(f"    {part.strip()},\n" for part in parts) + f"){answer}"


def _told(doc: str | None) -> str:
    """A docstring as Markdown: its indented parts are code."""
    text = inspect.cleandoc(doc or "").replace("``", "`")
    parts = re.split(r"\n{2,}", text)
    return _joined(parts)


def _joined(parts: list[str]) -> str:
    made: list[str] = []
    for part in parts:
        code = _is_code(part)
        body = inspect.cleandoc("\n" + part) if code else part
        if code and made and made[-1].startswith("```python"):
            made[-1] = made[-1].removesuffix("\n```") + f"\n\n{body}\n```"
        else:
            made.append(f"```python\n{body}\n```" if code else body)
    return "\n\n".join(made)


def _is_code(part: str) -> bool:
    first = part.lstrip()
    return part.startswith("    ") or first.startswith(("@", "outbox = ", "schedule(", "with Session("))


def _sentence(doc: str | None) -> str:
    text = " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].replace("``", "`").split())
    return re.split(r"(?<=\.)\s(?=[A-Z`])", text, maxsplit=1)[0]
