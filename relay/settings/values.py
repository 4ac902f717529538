"""Reads values as they are written in relay.toml and the environment: durations, sizes, lists, names, addresses.

Messages never repeat a URL: it may hold a password.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from keyword import iskeyword
from pathlib import Path
from string import Formatter
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field

from relay.domain.alerts import AlertClass
from relay.domain.envelopes import ENVELOPES
from relay.domain.envelopes.cloudevents import PLACEHOLDERS
from relay.domain.identity import is_id
from relay.domain.limits import is_schema
from relay.domain.subject import STREAM
from relay.domain.topology import StartAt, is_pattern

_UNITS: Final = {
    "y": timedelta(days=365),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|y|d|h|m|s))+")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|y|d|h|m|s)")
_RATE = re.compile(r"([0-9]{1,9})/(.+)")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_LONGEST: Final = timedelta(days=36500)

#: As nats-server reads its own configuration file: GB and GiB are both 1024³ bytes.
_SIZES: Final = {"B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}
_SIZE = re.compile(r"([0-9]+) ?(B|[KMGT]i?B)", re.IGNORECASE)

#: Names of contexts and subscriptions: subject tokens, variables and parts of broker names.
CONTEXT_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_ADDRESS = re.compile(r"(?:([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):)?([0-9]{1,5})")
_VISIBLE = re.compile(r"[\x21-\x7e]{1,500}")
_ERROR: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_EVENT_TYPES = re.compile(r"[A-Za-z0-9_-]{1,64}\*?|\*")
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)


def parse_duration(value: object) -> timedelta:
    """Read ``"100ms"``, ``"1.5s"``, ``"1h30m"``, ``"7d"``, ``"3y"`` (of 365 days) or a number of seconds.

    Raises ValueError.
    """
    if isinstance(value, timedelta):
        return value
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    try:
        if _NUMBER.fullmatch(text):
            duration = timedelta(seconds=float(text))
        elif _DURATION.fullmatch(text):
            duration = sum((float(n) * _UNITS[u] for n, u in _DURATION_PART.findall(text)), timedelta())
        else:
            raise ValueError(f"{str(value)[:40]!r} is not a duration; write 100ms, 30s, 2m, 1h, 7d or seconds")
    except OverflowError:
        duration = _LONGEST * 2
    if duration > _LONGEST:
        raise ValueError(f"{str(value)[:40]!r} is longer than 100 years")
    return duration


def parse_rate(text: str) -> timedelta:
    """Read ``"100/1m"`` as the time between two starts. Raises ValueError."""
    found = _RATE.fullmatch(text)
    interval = timedelta() if found is None or int(found[1]) < 1 else parse_duration(found[2]) / int(found[1])
    if interval <= timedelta():
        raise ValueError(f"{text[:40]!r} is not a rate; write 100/1m")
    return interval


def parse_start(value: object) -> StartAt:
    """Read ``"beginning"``, ``"now"``, or a moment with its zone. Raises ValueError."""
    match value:
        case "beginning":
            return "beginning"
        case "now":
            return "now"
    moment = value if isinstance(value, datetime) else None
    with suppress(ValueError, TypeError):
        moment = moment or datetime.fromisoformat(value)  # type: ignore[arg-type] # a TypeError, if it is no text
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"{str(value)[:40]!r} is not a start; write beginning, now, or 2026-01-31T12:00:00Z")
    return moment.astimezone(UTC)


def format_duration(value: timedelta) -> str:
    """Write a duration in the largest unit that divides it: ``7d``, ``90s``, ``100ms``."""
    for unit, size in _UNITS.items():
        if value and not value % size:
            return f"{value // size}{unit}"
    return f"{value.total_seconds():g}s"


def parse_size(value: object) -> int:
    """Read ``"10GB"``, ``"512MB"``, ``"unlimited"`` (-1) or a number of bytes. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    if text.lower() == "unlimited" or text == "-1":
        return -1
    if text.isascii() and text.isdigit():
        return int(text)
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a size; write 512MB, 10GB (of 1024³ bytes), unlimited or bytes")
    return int(match[1]) * _SIZES[match[2].upper().replace("I", "")]


def format_size(value: int) -> str:
    """Write a size in the largest unit that divides it."""
    if value < 0:
        return "unlimited"
    for unit, size in reversed(_SIZES.items()):
        if value and not value % size:
            return f"{value // size}{unit}" if unit != "B" else str(value)
    return str(value)


def parse_list(value: object) -> object:
    """Read a list from the environment: ``a,b`` or JSON. A value that is not text is returned unchanged."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return [item.strip() for item in value.split(",") if item.strip()]
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError("starts with [ and is not a JSON list") from error


def is_module(name: str) -> bool:
    """Whether a text is the name of a module."""
    return _MODULE.fullmatch(name) is not None and not any(map(iskeyword, name.split(".")))


def _is_envelope(value: str) -> bool:
    if value in ENVELOPES:
        return True
    scheme, _, rest = value.partition(":")
    module, colon, name = rest.partition(":")
    return scheme == "python" and is_module(module) and (not colon or name.isidentifier())


def _attribute_template(value: str) -> str:
    """Check a template for an attribute of CloudEvents. Raises ValueError."""
    try:
        parts = [
            (key, spec, conversion) for _, key, spec, conversion in Formatter().parse(value) if key is not None
        ]
    except ValueError as error:
        raise ValueError(f"is not a template: {error}") from None
    for key, spec, conversion in parts:
        if key not in PLACEHOLDERS or spec or conversion:
            known = " ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise ValueError(f"has the unknown placeholder {{{key[:40]}}}; known: {known}")
    if not _VISIBLE.fullmatch(value):
        raise ValueError("must be 1 to 500 characters of plain ASCII without spaces")
    return value


def only(fits: Callable[[str], object], otherwise: str) -> AfterValidator:
    """Refuse a text that does not fit; ``otherwise`` says what it is not."""

    def check(value: str) -> str:
        if not fits(value):
            raise ValueError(f"{value[:80]!r} {otherwise}")
        return value

    return AfterValidator(check)


def _rate(value: str) -> str:
    parse_rate(value)
    return value


def _absolute(value: Path) -> Path:
    if not value.is_absolute():
        raise ValueError("must begin with /: every process starts in a folder of its own")
    return value


def _listen_address(value: object) -> str:
    """Read ``9464`` (on 127.0.0.1), ``0.0.0.0:9464`` or ``[::]:9464``. Raises ValueError."""
    match = _ADDRESS.fullmatch(str(value).strip())
    if match is None or not 0 < int(match[2]) < 65536:
        raise ValueError(f"{str(value)[:80]!r} is not an address to listen at; write 9464 or 0.0.0.0:9464")
    return f"{match[1] or '127.0.0.1'}:{int(match[2])}"


def _unlimited(value: object) -> object:
    return None if isinstance(value, str) and value.strip().lower() in ("unlimited", "0", "0s") else value


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be longer than 0")
    return value


def _at_least(least: str) -> AfterValidator:
    def check(value: int) -> int:
        if value != -1 and value < 1:
            raise ValueError(f"must be at least {least}, or -1 for unlimited")
        return value

    return AfterValidator(check)


StartsAt = Annotated[StartAt, BeforeValidator(parse_start)]
Duration = Annotated[timedelta, BeforeValidator(parse_duration), AfterValidator(_positive)]
Rate = Annotated[str, AfterValidator(_rate)]
Age = Annotated[Duration | None, BeforeValidator(_unlimited)]
Size = Annotated[int, BeforeValidator(parse_size), _at_least("1 byte")]
Count = Annotated[int, _at_least("1"), Field(le=2**63 - 1)]
Subject = Annotated[
    str, only(is_pattern, "is not a subject; write tokens of A-Z a-z 0-9 _ - with dots, *, a last >")
]
Subjects = Annotated[tuple[Subject, ...], BeforeValidator(parse_list)]
EventType = Annotated[
    str, only(_EVENT_TYPES.fullmatch, "names no events; write a name, or its beginning and *: LoopClosed, Loop*")
]
EventTypes = Annotated[tuple[EventType, ...], BeforeValidator(parse_list)]
Modules = Annotated[tuple[str, ...], BeforeValidator(parse_list)]
#: Exceptions by name, such as ``stripe.APIConnectionError``.
ErrorName = Annotated[str, only(_ERROR.fullmatch, "is not the name of an exception; write package.Class")]
ErrorNames = Annotated[tuple[ErrorName, ...], BeforeValidator(parse_list)]
Names = Modules
AlertClasses = Annotated[tuple[AlertClass, ...], BeforeValidator(parse_list)]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
AttributeTemplate = Annotated[str, AfterValidator(_attribute_template)]
UriTemplate = Annotated[
    AttributeTemplate, only(_SCHEME.match, "is not a URI; write https://example.com/{name}/{version}")
]
EnvelopeName = Annotated[
    str, only(_is_envelope, f"is not an envelope; write {', '.join(ENVELOPES)} or python:myapp.wire")
]
ActorId = Annotated[str, only(is_id, "is not an id; write 1 to 200 bytes of printable text")]
BrokerName = Annotated[
    str, only(STREAM.fullmatch, "is not a name for a stream or consumer; write A-Z a-z 0-9 _ -")
]
SchemaName = Annotated[
    str, only(is_schema, "is not a name for a schema; write a-z 0-9 _, at most 48, a-z first, not pg_…")
]
_SEARCHED_TYPE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}(\.[A-Za-z_][A-Za-z0-9_-]{0,63}){0,4}")
SearchedType = Annotated[str, only(_SEARCHED_TYPE.fullmatch, "is not the type of an event")]
SearchedFields = Annotated[
    tuple[Annotated[str, only(_FIELD.fullmatch, "is not a field; write customer_id or order.id")], ...],
    BeforeValidator(parse_list),
]
ListenAddress = Annotated[str, BeforeValidator(_listen_address)]
