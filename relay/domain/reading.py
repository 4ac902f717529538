"""Reads and checks the values of a received message."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from relay.domain.errors import MalformedMessage
from relay.domain.limits import MAX_DEPTH, has_long_number, nests_deeper

#: Control characters and white space of every kind.
_NO_TEXT: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")


def read_subject(raw: bytes) -> tuple[str, bool]:
    r"""A subject as text, and whether the text is exactly the sent bytes.

    A broker accepts any bytes except spaces and line breaks. A subject that is not plain text is escaped, so that
    people can read it, it can be sent on, and the escapes can be undone. Bytes that are not UTF-8, control
    characters and white space become ``\xNN``; a backslash then becomes ``\\``.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        pass
    else:
        if not _NO_TEXT.search(text):
            return text, True
    text = raw.replace(b"\\", rb"\\").decode("utf-8", "backslashreplace")
    return _NO_TEXT.sub(lambda found: "".join(f"\\x{byte:02x}" for byte in found[0].encode()), text), False


def read_json(body: bytes) -> Any:
    """Parse a body. Raises MalformedMessage."""
    content = _read_quickly(body)
    if content is None:
        content = _read_surely(body)
    # The envelope adds one level to the payload. A body with few brackets cannot nest too deep.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and nests_deeper(content, MAX_DEPTH + 1):
        raise MalformedMessage(f"the body nests deeper than {MAX_DEPTH}", field="body")
    return content


def _quick() -> Callable[[bytes], Any] | None:
    """What orjson reads JSON with, an optional speed-up (``jetrelay[fast]``)."""
    try:
        from orjson import loads  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return loads


_QUICK: Final = _quick()


def _read_quickly(body: bytes) -> Any:
    """What orjson makes of a body, if that is surely what `_read_surely` makes of it; otherwise None.

    orjson refuses more than we do, and reads the rest alike, except for integers outside 64 bits.
    """
    if _QUICK is None or has_long_number(body):
        return None
    try:
        return _QUICK(body)
    except ValueError:
        return None


def _read_surely(body: bytes) -> Any:
    try:
        return _DECODER.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except RecursionError:
        raise MalformedMessage(f"the body nests deeper than {MAX_DEPTH}", field="body") from None
    except ValueError as error:
        # The error's own text may quote the body, so tell only the place.
        where = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise MalformedMessage(f"the body is not JSON{where}", field="body") from None


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError("not a number that every reader knows")
    return value


_DECODER: Final = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)


def read_object(body: Any) -> dict[str, Any]:
    """The body, if it is an object. Raises MalformedMessage."""
    if not isinstance(body, dict):
        raise MalformedMessage("the body is not a JSON object", field="body")
    return body


def read_version(value: str) -> int:
    """Read a schema version from a header. Raises MalformedMessage."""
    if not value.isdecimal() or not value.isascii() or len(value) > 9:
        raise MalformedMessage("is not a whole number from 1", field="event_version")
    return int(value)


def read_time(value: Any, field: str = "occurred_at") -> datetime | None:
    """Read a time with its zone, if there is one. Raises MalformedMessage."""
    if value is None:
        return None
    try:
        # RFC 3339 allows small letters, Python does not.
        parsed = datetime.fromisoformat(value.upper() if isinstance(value, str) else value)
        if parsed.tzinfo is not None:
            return parsed if parsed.tzinfo is UTC else parsed.astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        raise MalformedMessage("is not an ISO 8601 time", field=field) from None
    raise MalformedMessage("has no time zone", field=field)
