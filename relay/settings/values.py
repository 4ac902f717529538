"""Reads values as they are written in relay.toml and the environment: durations, sizes, lists, names, addresses.

Messages never repeat a URL: it may hold a password.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator

from relay.domain.topology import is_pattern

_UNITS: Final = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|d|h|m|s))+")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|d|h|m|s)")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_LONGEST: Final = timedelta(days=36500)

#: As nats-server reads its own configuration file: GB and GiB are both 1024³ bytes.
_SIZES: Final = {"B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}
_SIZE = re.compile(r"([0-9]+) ?(B|[KMGT]i?B)", re.IGNORECASE)

#: Names of contexts and subscriptions: subject tokens, variables and parts of broker names.
CONTEXT_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_ADDRESS = re.compile(r"(?:([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):)?([0-9]{1,5})")
_BROKER_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


def parse_duration(value: object) -> timedelta:
    """Read ``"100ms"``, ``"1.5s"``, ``"1h30m"``, ``"7d"`` or a number of seconds. Raises ValueError."""
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


def _pattern(value: str) -> str:
    if not is_pattern(value):
        raise ValueError(
            f"{value[:80]!r} is not a subject; write tokens of A-Z a-z 0-9 _ - with dots, *, a last >"
        )
    return value


def _absolute(value: Path) -> Path:
    if not value.is_absolute():
        raise ValueError("must begin with /: every process starts in a folder of its own")
    return value


def _broker_name(value: str) -> str:
    if not _BROKER_NAME.fullmatch(value):
        raise ValueError(f"{value[:80]!r} is not a name for a stream or consumer; write A-Z a-z 0-9 _ -")
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


def _size(value: int) -> int:
    if value != -1 and value < 1:
        raise ValueError("must be at least 1 byte, or -1 for unlimited")
    return value


def _count(value: int) -> int:
    if value != -1 and value < 1:
        raise ValueError("must be at least 1, or -1 for unlimited")
    return value


Duration = Annotated[timedelta, BeforeValidator(parse_duration), AfterValidator(_positive)]
Age = Annotated[Duration | None, BeforeValidator(_unlimited)]
Size = Annotated[int, BeforeValidator(parse_size), AfterValidator(_size)]
Count = Annotated[int, AfterValidator(_count)]
Subject = Annotated[str, AfterValidator(_pattern)]
Subjects = Annotated[tuple[Subject, ...], BeforeValidator(parse_list)]
Modules = Annotated[tuple[str, ...], BeforeValidator(parse_list)]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
BrokerName = Annotated[str, AfterValidator(_broker_name)]
ListenAddress = Annotated[str, BeforeValidator(_listen_address)]
