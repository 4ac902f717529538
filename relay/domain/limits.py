"""Input limits (DESIGN §11): what may enter the outbox and what may reach the broker.

The same rules run twice. They run when an event is added, so that the caller gets the error. They run again before
publishing, because any program may insert rows with plain SQL.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final

from relay.domain.errors import ConfigurationError, InvalidHeader, InvalidKey, InvalidPayload, PayloadTooLarge

MAX_KEY_BYTES: Final = 200
MAX_DEPTH: Final = 100
MAX_HEADERS: Final = 32
MAX_HEADER_BYTES: Final = 8_192
#: Room kept below the broker's ``max_payload`` for our own headers and the protocol line.
WIRE_RESERVE_BYTES: Final = 1_024
#: The header of a message whose payload is elsewhere (`relay.domain.large`). Only the relay writes it.
PAYLOAD: Final = "Relay-Payload"
#: nats-server's default ``max_payload`` in bytes.
DEFAULT_MAX_PAYLOAD_BYTES: Final = 1_048_576

_PAYLOAD: Final = PAYLOAD.lower()
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_SCHEMA = re.compile(r"[a-z][a-z0-9_]{0,47}\Z")
_HEADER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*\Z")
_ENCODER: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False)
#: Tables for `bytes.translate`. They avoid a Python loop over each character of a payload.
_STRUCTURE: Final = b'"{}[]'
_OTHERS: Final = bytes(set(range(256)) - set(_STRUCTURE))
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = bytes.maketrans(b"[]", b"\x01\xff")
_ALL_ZERO: Final = bytes(48 if 48 <= byte <= 57 else 32 for byte in range(256))
_SEPARATORS: Final = bytes.maketrans(b"{}[],:", b"      ")
#: An integer outside 64 bits has at least so many digits.
_LONG: Final = b"0" * 19
#: Of so many characters one is looked at. Among 19 digits in a row these are at least three.
_EVERY: Final = 6
#: From this size on, a text is long, and so many of its strings are passed over.
_LONG_BYTES: Final = 4_096
_STRINGS: Final = 64


def is_schema(value: str) -> bool:
    """Whether ``value`` can name a schema of PostgreSQL, without quotes."""
    return bool(_SCHEMA.match(value)) and not value.startswith("pg_")


def check_schema(value: str | None) -> str | None:
    """Return ``value`` if it is None or can name a schema. Raises ConfigurationError."""
    if value is not None and not is_schema(value):
        raise ConfigurationError(
            f"{value[:80]!r} is not a name for a schema", field="schema", hint="a-z 0-9 _, at most 48, not pg_…"
        )
    return value


def check_key(value: object, field: str, *, limit: int = MAX_KEY_BYTES) -> str:
    """Return ``value`` if it is a usable id or key: 1 to ``limit`` bytes of UTF-8 without NUL.

    Raises InvalidKey, naming ``field``.
    """
    if not isinstance(value, str) or not value:
        raise InvalidKey("must be a non-empty string", field=field)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidKey("is not valid Unicode text", field=field) from None
    if size > limit:
        raise InvalidKey(f"is {size} bytes long, the limit is {limit}", field=field)
    if "\x00" in value:
        raise InvalidKey("contains a NUL character", field=field)
    return value


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse header names and values that NATS or its clients would misread.

    Names that start with ``Nats-`` control the server, so a caller must not set them.
    Raises InvalidHeader, naming the header.
    """
    if type(headers) is dict and not headers:
        return
    if not isinstance(headers, Mapping):
        raise InvalidHeader("must be a mapping of names to values", field="headers")
    if len(headers) > MAX_HEADERS:
        raise InvalidHeader(f"{len(headers)} headers, the limit is {MAX_HEADERS}", field="headers")
    total = 0
    for name, value in headers.items():
        _check_header(name, value)
        total += len(name) + len(value) + 4
    if total > MAX_HEADER_BYTES:
        raise InvalidHeader(f"{total} bytes of headers, the limit is {MAX_HEADER_BYTES}", field="headers")


def _check_header(name: object, value: object) -> None:
    if not isinstance(name, str) or not _HEADER_NAME.match(name):
        raise InvalidHeader(f"{str(name)[:80]!r} is not a header name", field="headers")
    if name.lower().startswith("nats-"):
        raise InvalidHeader("names starting with Nats- are reserved for the broker", field=f"headers.{name}")
    if name.lower() == _PAYLOAD:
        raise InvalidHeader("is written by the relay only", field=f"headers.{name}")
    if not isinstance(value, str) or not _HEADER_VALUE.match(value):
        raise InvalidHeader("the value must be printable ASCII text", field=f"headers.{name}")


def encode_payload(payload: Any) -> str:
    """Check ``payload`` and serialise it to JSON text, with the spaces that PostgreSQL also writes.

    Refused: NaN and infinities, NUL characters and lone surrogates, nesting deeper than 100,
    numbers outside 64 bits, keys that are not strings, and values that JSON cannot hold.
    Raises InvalidPayload, naming the path of the value at fault.
    """
    _check_tree(payload)
    try:
        return _ENCODER.encode(payload)
    except (TypeError, ValueError) as error:
        raise InvalidPayload(str(error), field="payload") from error


def _check_tree(payload: Any) -> None:
    stack: list[tuple[Any, str, int]] = [(payload, "payload", 0)]
    while stack:
        value, path, depth = stack.pop()
        if depth == MAX_DEPTH and isinstance(value, dict | list | tuple):
            raise InvalidPayload(f"nested deeper than {MAX_DEPTH}", field="payload")
        if isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise InvalidPayload(f"key {key!r} is not a string", field=path)
                if not _is_harmless(key):
                    _check_text(key, path)
                if not _is_harmless(item):
                    stack.append((item, f"{path}.{key}", depth + 1))
        elif isinstance(value, list | tuple):
            stack.extend((item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value))
        else:
            _check_scalar(value, path)


def _is_harmless(value: Any) -> bool:
    """Whether a value is certainly valid. Most values are, and this fast check needs no path for an error."""
    kind = type(value)
    return (kind is str and value.isascii() and "\x00" not in value) or (
        kind is int and _INT64_MIN <= value <= _INT64_MAX
    )


def _check_scalar(value: Any, path: str) -> None:
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int):
        if not _INT64_MIN <= value <= _INT64_MAX:
            raise InvalidPayload("integer outside 64 bits", field=path)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidPayload("NaN and infinities have no form in JSON", field=path)
        # PostgreSQL renders 1e300 as an integer of 301 digits, which no reader reads as a float again.
        if abs(value) >= 2**63:
            raise InvalidPayload("number outside 64 bits", field=path)
    else:
        raise InvalidPayload(f"{type(value).__name__} has no form in JSON", field=path)


def _check_text(value: str, path: str) -> None:
    if "\x00" in value:
        raise InvalidPayload("contains a NUL character", field=path[:MAX_KEY_BYTES])
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidPayload("contains a lone surrogate", field=path[:MAX_KEY_BYTES]) from None


def check_payload_text(text: str) -> None:
    """Check JSON text that PostgreSQL has accepted. The check does not parse the text and runs at C speed.

    A text with at most 100 opening brackets cannot nest deeper. A text without a run of 19 digits cannot hold an
    integer outside 64 bits. So two scans are enough for almost every payload. The scan for digits reads only
    every sixth character. What the first strings of a long text hold is not looked at. Raises InvalidPayload.
    """
    data = text.encode(errors="surrogatepass")
    if len(data) >= _LONG_BYTES:
        data = _without_strings(data)
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _depth(data) > MAX_DEPTH:
        raise InvalidPayload(f"nested deeper than {MAX_DEPTH}", field="payload")
    if has_long_number(data) and _has_large_integer(data):
        raise InvalidPayload("integer outside 64 bits", field="payload")


def _without_strings(data: bytes) -> bytes:
    """JSON text with its first strings empty. A search for quotes is 50 times faster than all other scans."""
    data = _without_escapes(data)
    parts: list[bytes] = []
    end = 0
    for _ in range(_STRINGS):
        begin = data.find(b'"', end)
        if begin < 0:
            break
        parts.append(data[end:begin])
        end = data.find(b'"', begin + 1) + 1
    return b'""'.join([*parts, data[end:]])


def has_long_number(data: bytes) -> bool:
    """Whether JSON text may hold an integer outside 64 bits. Text in quotes counts too."""
    return b"000" in data[_EVERY - 1 :: _EVERY].translate(_ALL_ZERO) and _LONG in data.translate(_ALL_ZERO)


def _depth(data: bytes) -> int:
    """How deep JSON text nests. Above the limit, the result is any number above the limit."""
    # An empty string in quotes does not affect the text around it.
    rest = _without_escapes(data).translate(_BRACKETS, _OTHERS).replace(b'""', b"")
    rest = b"".join(rest.split(b'"')[::2])
    levels = 0
    while rest and levels <= MAX_DEPTH:
        # Each round removes the innermost brackets. If these are few, counting step by step is faster.
        outer = rest.replace(b"[]", b"")
        if len(outer) > len(rest) // 2:
            return levels + max(accumulate(array("b", rest.translate(_STEPS))))
        rest = outer
        levels += 1
    return levels


def _has_large_integer(data: bytes) -> bool:
    """Whether JSON text holds an integer outside 64 bits, outside of its strings."""
    # Strings may hold long runs of digits, for example hexadecimal ones, so look only outside of them.
    outside = b" ".join(_without_escapes(data).split(b'"')[::2])
    return _LONG in outside.translate(_ALL_ZERO) and any(
        len(word) > 20 or not _INT64_MIN <= int(word) <= _INT64_MAX
        for word in outside.translate(_SEPARATORS).split()
        if len(word) > 18 and word.lstrip(b"-").isdigit()
    )


def _without_escapes(data: bytes) -> bytes:
    """JSON text without escaped quotes and backslashes, so that each quote begins or ends a string."""
    return data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data


def nests_deeper(value: Any, limit: int) -> bool:
    """Whether parsed JSON holds a container inside ``limit`` others."""
    level = [value]
    for _ in range(limit):
        level = [item for outer in level for item in _items(outer)]
    return any(isinstance(item, dict | list) for item in level)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def check_size(size: int, max_payload: int) -> None:
    """Refuse a message of ``size`` bytes (subject, headers and body) over the broker's limit.

    nats-server closes the connection of a client that exceeds ``max_payload``, so this check must
    run before the bytes are sent. Raises PayloadTooLarge.
    """
    limit = max_payload - WIRE_RESERVE_BYTES
    if size > limit:
        raise PayloadTooLarge(
            f"the message takes {size} bytes, the limit is {limit}",
            field="payload",
            hint="store the content elsewhere and send a reference to it",
        )
