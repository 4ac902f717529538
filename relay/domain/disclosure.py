"""What may be told about a failure: codes and places of the program, but no values, which are data.

Reasons are copied to many places: log lines, columns, dead letters, alerts. A handler's answer or an exception's
message may repeat its input. So neither is told unless a context or subscription asks for it
(``error_detail = "text"``). Text that is written for operators is told: the message of a `RelayError`, which
includes `DomainError`, and the header ``Relay-Reason`` of an answer.

Exceptions of other packages are recognised by their attributes, so this module imports none of these packages.
A validation error has ``errors()``, a database driver's error has ``sqlstate``, and ``orig`` is a wrapped error.
"""

from __future__ import annotations

import errno
import json
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

from relay.domain.errors import RelayError
from relay.domain.frames import Line, last_line, lines, traceback_of

Told = TypeVar("Told")

#: How much is told, in bytes of UTF-8.
LIMIT_BYTES: Final = 500
_MAX_SHOWN_ERRORS: Final = 3
_MAX_CAUSES: Final = 10
_MAX_LOGGED: Final = 30
#: How many characters of a text that an application logs itself.
_MAX_TEXT: Final = 10_000
#: Begins each line of a stack. The stack follows its reason.
_FROM: Final = " <- "
_MAX_FRAMES: Final = 8
_FRAME_CHARS: Final = 120
_NAME_CHARS: Final = 100
_CODE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")
#: A key that is told has no digit: those of accounts have.
_WORD: Final = re.compile(r"[A-Za-z_.-]{1,64}\Z")
_SQLSTATE: Final = re.compile("[0-9A-Z]{5}")
#: Names of fields and errors have at most this many digits. Account and telephone numbers have more.
_MAX_DIGITS: Final = 5
#: How many exceptions of a group are looked at, and how deep it may be.
_MAX_MEMBERS: Final = 100
#: What holds the status of an answer or of a program, in an exception or in its ``response``.
_STATUS: Final = ("status_code", "status", "code", "returncode")


def printable(text: str) -> str:
    """One line that terminals can show and PostgreSQL can store: escaped, and cut after `LIMIT_BYTES` bytes."""
    text = text.strip()[:LIMIT_BYTES]
    line = "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)
    return line.encode()[:LIMIT_BYTES].decode(errors="ignore")


def clean(text: str, limit: int = 2_000) -> str:
    """Text that is safe to store and to show: bounded in characters, and without control characters."""
    return "".join(char if char.isprintable() else " " for char in text[:limit])


def name_of(error: BaseException) -> str:
    """The name of an exception's class. Its metaclass has no say."""
    return str(type.__dict__["__name__"].__get__(type(error)))[:_NAME_CHARS]


def first_line(error: BaseException) -> str:
    """The first line of an exception's message. The further lines of a driver's message quote rows."""
    try:
        said = str(error)[: LIMIT_BYTES * 4].strip().splitlines()
    except BaseException:
        said = []  # the exception's own __str__ fails
    return printable(said[0] if said else name_of(error))


# --- exceptions -----------------------------------------------------------------------------------


def bare(error: BaseException) -> str:
    """The class and the place of an exception. No class can make this fail."""
    line = last_line(error)
    return printable(f"{name_of(error)} at {line.at}" if line else name_of(error))


def or_else(without: Callable[[BaseException], Told]) -> Callable[..., Callable[..., Told]]:
    """Tell ``without`` if the attributes or methods of an exception raise: they are code of an application."""

    def around(tell: Callable[..., Told]) -> Callable[..., Told]:
        @wraps(tell)
        def told(error: BaseException, /, **options: bool) -> Told:
            try:
                return tell(error, **options)
            except BaseException:
                return without(error)

        return told

    return around


@or_else(bare)
def safe_text(error: BaseException) -> str:
    """What may be told about an exception: its message if it is ours, else its class, codes and place.

    A group of exceptions is told by its first one.
    """
    name = name_of(error)
    if isinstance(error, RelayError):
        said = f"invalid {error.field or ''}" if error.quotes else error.message
        return printable(name if said in ("", name) else f"{name}: {said}")
    cause, place = _driver(error), _place(error)
    parts = [name_of(cause), *_codes(cause, place), f"at {place.at}" if place else ""]
    return printable(" ".join(filter(None, parts)))


def _place(error: BaseException) -> Line | None:
    """Where an exception was raised; or what led to it, if only a library raised the exception itself."""
    found = [line for one in causes(error) if (line := last_line(one)) is not None]
    return next((it for it in found if it.is_application), found[0] if found else None)


@or_else(lambda _: "")
def words(error: BaseException) -> str:
    """The message of an exception, if a setting asks for it. Empty if `safe_text` already includes it."""
    return "" if isinstance(error, RelayError) and not error.quotes else first_line(_driver(error))


@or_else(lambda it: f"{_traceback(it)}{bare(it)}")
def trace(error: BaseException) -> str:
    """A traceback with the lines of the program and, for each exception, the text of `safe_text`."""
    parts = [f"{_traceback(one)}{safe_text(one)}" for one in causes(error)]
    return "\n\nwhich led to:\n\n".join(reversed(parts))


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_tb(traceback_of(error), -_MAX_LOGGED))


@or_else(lambda it: _FROM.join([bare(it), *_bounded(_own_lines(it))]))
def with_stack(error: BaseException) -> str:
    """What may be told about an exception, followed by its lines in the application; `stack_of` reads it."""
    return _FROM.join([safe_text(error), *_stack(error)])


def stack_of(text: str) -> tuple[str, list[str]]:
    """Return a reason without its stack, and the lines of the stack, the innermost first."""
    reason, *stack = text.split(_FROM)
    return reason, stack


def full(reason: str, said: str) -> str:
    """Return a reason with a text that it does not contain yet. The text comes before the stack."""
    text, stack, shown = reason.partition(_FROM)
    return f"{text}: {said}{stack}{shown}"


def _stack(error: BaseException) -> list[str]:
    """The lines of the application, such as ``myapp/cases.py:12 in close``, also of the causes. Bounded."""
    found: list[str] = []
    for one in causes(error):
        found += [] if one is error else [f"caused by {name_of(one)}"]
        found += _own_lines(one)
        if isinstance(one, BaseExceptionGroup):
            first = _first(one)
            found += [f"one is {name_of(first)}", *_own_lines(first)]
    return _bounded(found)


def _bounded(stack: list[str]) -> list[str]:
    return [printable(line[:_FRAME_CHARS]) for line in stack[:_MAX_FRAMES]]


def _own_lines(error: BaseException) -> list[str]:
    return [_shown(it) for it in reversed([*lines(error)]) if it.is_application]


def _shown(line: Line) -> str:
    """A line of code. The path of its file begins at the package of the module."""
    path = Path(line.code.co_filename)
    parts = line.module.count(".") + (2 if path.stem == "__init__" else 1)
    return f"{'/'.join(path.parts[-parts:])}:{line.number} in {line.code.co_name}"


def causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, then what it was raised from, and so on. Bounded."""
    current: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if current is None:
            return
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def members(error: BaseException) -> Iterator[BaseException]:
    """An exception and, if it is a group, those in it. Bounded."""
    waiting = [error]
    for _ in range(_MAX_MEMBERS):
        if not waiting:
            return
        yield (one := waiting.pop())
        if isinstance(one, BaseExceptionGroup):
            waiting += reversed(one.exceptions[:_MAX_MEMBERS])


def _first(error: BaseException) -> BaseException:
    """The first exception of a group that is none itself."""
    found = [*members(error)]
    return next((it for it in found if not isinstance(it, BaseExceptionGroup)), found[-1])


@or_else(lambda it: [{"exc_type": name_of(it), "exc_value": bare(it), "frames": _frames(it)}])
def traced(error: BaseException, *, in_full: bool = False) -> list[dict[str, Any]]:
    """A traceback as values for JSON logs: like structlog's dict tracebacks, without locals and messages.

    The frames are those of the application, or all if it has none. ``in_full``: with the messages.
    """
    return [
        {
            "exc_type": name_of(one),
            "exc_value": str(one)[:_MAX_TEXT] if in_full else safe_text(one),
            "frames": _frames(one),
        }
        for one in causes(error)
    ]


def _frames(error: BaseException) -> list[dict[str, Any]]:
    found = [*lines(error)]
    own = [it for it in found if it.is_application] or found
    return [
        {"filename": it.code.co_filename, "lineno": it.number, "name": it.code.co_name}
        for it in own[-_MAX_LOGGED:]
    ]


def _driver(error: BaseException) -> BaseException:
    """The driver's error, if ``error`` wraps one; the wrapper would quote the statement and its parameters."""
    original = getattr(error, "orig", None)
    return original if isinstance(original, BaseException) else error


def _codes(error: BaseException, line: Line | None) -> Iterator[str]:
    if isinstance(state := getattr(error, "sqlstate", None), str):
        yield state if _SQLSTATE.fullmatch(state) else ""
        constraint = getattr(getattr(error, "diag", None), "constraint_name", None)
        if isinstance(constraint, str):
            yield f"({_name(constraint)})"
    if told := validation(error) or _of_group(error) or _word(error, line) or _status(error):
        yield f"({told})"


def _of_group(error: BaseException) -> str:
    if not isinstance(error, BaseExceptionGroup):
        return ""
    first = _first(error)
    return name_of(first) if isinstance(first, BaseExceptionGroup) else safe_text(first)


def _word(error: BaseException, line: Line | None) -> str:
    """The module, key or attribute that an error is about. A key may be data, but not one that the code writes."""
    if isinstance(error, ImportError) and error.name:
        return _name(error.name)
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, "")
    if isinstance(error, KeyError) and len(error.args) == 1:
        word = error.args[0]
    else:
        word = error.name if isinstance(error, AttributeError | NameError) else None
    return word if line is not None and _WORD.match(str(word)) and line.looks_up(word) else ""


def _status(error: BaseException) -> str:
    """The status of an HTTP answer or of a program, as the libraries' exceptions hold it. Empty for others."""
    for holder in (error, getattr(error, "response", None)):
        for name in _STATUS:
            status = getattr(holder, name, None)
            if isinstance(status, int) and not isinstance(status, bool) and abs(status) < 1_000:
                return str(int(status))
    return ""


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
