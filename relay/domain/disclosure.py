"""What may be told about a failure: codes and places of the program, but no values, which are data.

Reasons are copied to many places: log lines, columns, dead letters, alerts. A handler's answer or an exception's
message may repeat its input. So neither is told unless a context or subscription asks for it
(``error_detail = "text"``). Text that is written for operators is told: the message of a `RelayError`, which
includes `DomainError`, and the header ``Relay-Reason`` of an answer.

Exceptions of other packages are recognised by their attributes, so this module imports none of these packages.
A validation error has ``errors()``, a database driver's error has ``sqlstate``, and ``orig`` is a wrapped error.
"""

from __future__ import annotations

import json
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

from relay.domain.errors import RelayError

#: How much is told, in bytes of UTF-8.
LIMIT_BYTES: Final = 500
_MAX_SHOWN_ERRORS: Final = 3
_MAX_CAUSES: Final = 10
_MAX_LOGGED: Final = 30
#: Begins each line of a stack. The stack follows its reason.
_FROM: Final = " <- "
_MAX_FRAMES: Final = 8
_FRAME_CHARS: Final = 120
_CODE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")
#: Names of fields and errors have at most this many digits. Account and telephone numbers have more.
_MAX_DIGITS: Final = 5
_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
_ROOT: Final = Path(__file__).parents[2]
#: Files whose lines are not the application's: our own and Python's.
_BETWEEN: Final = (
    "<",
    *(f"{_ROOT / name}{os.sep}" for name in ("relay", "consumer", "tasks", "scheduler")),
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib")},
)


def printable(text: str) -> str:
    """One line that terminals can show and PostgreSQL can store: escaped, and cut after `LIMIT_BYTES` bytes."""
    text = text.strip()[:LIMIT_BYTES]
    line = "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)
    return line.encode()[:LIMIT_BYTES].decode(errors="ignore")


def clean(text: str, limit: int = 2_000) -> str:
    """Text that is safe to store and to show: bounded in characters, and without control characters."""
    return "".join(char if char.isprintable() else " " for char in text[:limit])


def first_line(error: BaseException) -> str:
    """The first line of an exception's message. The further lines of a driver's message quote rows."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = []  # the exception's own __str__ fails
    return printable(lines[0] if lines else type(error).__name__)


# --- exceptions -----------------------------------------------------------------------------------


def safe_text(error: BaseException) -> str:
    """What may be told about an exception: its message if it is ours, else its class, codes and place."""
    name = type(error).__name__
    if isinstance(error, RelayError):
        said = f"invalid {error.field or ''}" if error.quotes else error.message
        return printable(name if said in ("", name) else f"{name}: {said}")
    cause = _driver(error)
    parts = [type(cause).__name__, *_codes(cause), _raised(error)]
    return printable(" ".join(filter(None, parts)))


def words(error: BaseException) -> str:
    """The message of an exception, if a setting asks for it. Empty if `safe_text` already includes it."""
    return "" if isinstance(error, RelayError) and not error.quotes else first_line(_driver(error))


def trace(error: BaseException) -> str:
    """A traceback with the lines of the program and, for each exception, the text of `safe_text`."""
    parts = [f"{''.join(traceback.format_tb(one.__traceback__))}{safe_text(one)}" for one in causes(error)]
    return "\n\nwhich led to:\n\n".join(reversed(parts))


def with_stack(error: BaseException) -> str:
    """What may be told about an exception, followed by its lines in the application; `stack_of` reads it."""
    return "".join([safe_text(error), *(f"{_FROM}{line}" for line in _stack(error))])


def stack_of(text: str) -> tuple[str, list[str]]:
    """Return a reason without its stack, and the lines of the stack, the innermost first."""
    reason, *stack = text.split(_FROM)
    return reason, stack


def full(reason: str, said: str) -> str:
    """Return a reason with a text that it does not contain yet. The text comes before the stack."""
    text, stack, lines = reason.partition(_FROM)
    return f"{text}: {said}{stack}{lines}"


def _stack(error: BaseException) -> list[str]:
    """The lines of the application, such as ``myapp/cases.py:12 in close``, also of the causes. Bounded."""
    found: list[str] = []
    for one in causes(error):
        found += [] if one is error else [f"caused by {type(one).__name__}"]
        frames = reversed([*traceback.walk_tb(one.__traceback__)])
        found += [_line(it, number) for it, number in frames if _is_of_application(it.f_code.co_filename)]
    return [printable(line[:_FRAME_CHARS]) for line in found[:_MAX_FRAMES]]


def _line(frame: FrameType, number: int) -> str:
    """A line of code. The path of its file begins at the package of the module."""
    path = Path(frame.f_code.co_filename)
    name = str(frame.f_globals.get("__name__", ""))
    parts = name.count(".") + (2 if path.stem == "__init__" else 1)
    return f"{'/'.join(path.parts[-parts:])}:{number} in {frame.f_code.co_name}"


def causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, then what it was raised from, and so on. Bounded."""
    current: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if current is None:
            return
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def traced(error: BaseException, *, in_full: bool = False) -> list[dict[str, Any]]:
    """A traceback as values for JSON logs: like structlog's dict tracebacks, without locals and messages.

    The frames are those of the application, or all if it has none. ``in_full``: with the messages.
    """
    return [
        {
            "exc_type": type(one).__name__,
            "exc_value": str(one) if in_full else safe_text(one),
            "frames": _frames(one),
        }
        for one in causes(error)
    ]


def _frames(error: BaseException) -> list[dict[str, Any]]:
    frames = [(frame.f_code, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    own = [it for it in frames if _is_of_application(it[0].co_filename)] or frames
    return [{"filename": code.co_filename, "lineno": it, "name": code.co_name} for code, it in own[-_MAX_LOGGED:]]


def _is_of_application(filename: str) -> bool:
    return not filename.startswith((*_LIBRARIES, *_BETWEEN))


def _driver(error: BaseException) -> BaseException:
    """The driver's error, if ``error`` wraps one; the wrapper would quote the statement and its parameters."""
    original = getattr(error, "orig", None)
    return original if isinstance(original, BaseException) else error


def _codes(error: BaseException) -> Iterator[str]:
    if isinstance(state := getattr(error, "sqlstate", None), str):
        yield state
        constraint = getattr(getattr(error, "diag", None), "constraint_name", None)
        if isinstance(constraint, str):
            yield f"({_name(constraint)})"
    if isinstance(error, ImportError) and error.name:
        yield f"({_name(error.name)})"
    found = validation(error)
    if found:
        yield f"({found})"


def _raised(error: BaseException) -> str:
    """Where an error was raised: the last line of the application, or else the first line of a library."""
    program = library = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code, module = frame.f_code, frame.f_globals.get("__name__", "?")
        if code.co_filename.startswith(_LIBRARIES):
            library = library or f"at {module}.{code.co_name}:{line}"
        elif _is_of_application(code.co_filename):
            program = f"at {module}.{code.co_name}:{line}"
    return program or library


def validation(error: BaseException, *under: str) -> str:
    """The codes and locations of pydantic's ValidationError, without its input. Empty for other errors.

    ``under``: the location of the validated value.
    """
    errors = getattr(error, "errors", None)
    if not callable(errors) or not hasattr(error, "error_count"):
        return ""
    found = errors(include_url=False, include_context=False, include_input=False)
    return _misfits([{**it, "loc": (*under, *it["loc"])} for it in found]) or "invalid"


# --- answers of services --------------------------------------------------------------------------


def answered(body: bytes) -> str:
    """What is told about the body of an answer: its code, or the codes and locations of validation errors."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(content, Mapping):
        return ""
    detail = content.get("detail")
    if isinstance(detail, list):
        return _misfits(detail)
    for holder in (content, detail, content.get("error")):
        if isinstance(holder, Mapping):
            for key in ("code", "error_code"):
                if _is_code(holder.get(key)):
                    return str(holder[key])
    return ""


def _misfits(found: list[Any]) -> str:
    """The first few errors as text, like ``string_too_long at body.payload.title``."""
    errors = [it for it in found if isinstance(it, Mapping) and _is_code(it.get("type"))]
    places = [(str(it["type"]), place(it.get("loc"))) for it in errors[:_MAX_SHOWN_ERRORS]]
    parts = [f"{code} at {where}" if where else code for code, where in places]
    more = f" (and {len(errors) - _MAX_SHOWN_ERRORS} more)" if len(errors) > _MAX_SHOWN_ERRORS else ""
    return "; ".join(parts) + more


def place(location: object) -> str:
    """Where an error is. A key of a map may be data. So a key that does not look like a name becomes a star."""
    return ".".join(_name(part) for part in location[:10]) if isinstance(location, list | tuple) else ""


def _name(part: object) -> str:
    if isinstance(part, int) and abs(part) < 10**5:
        return str(part)
    return part if _is_code(part) else "*"  # type: ignore[return-value] # a code is text


def _is_code(value: object) -> bool:
    return isinstance(value, str) and bool(_CODE.match(value)) and sum(map(str.isdigit, value)) <= _MAX_DIGITS
