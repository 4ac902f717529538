"""JSON that other programs wrote, as operators may see it: whatever it holds, it can be read, and shown as JSON.

PostgreSQL and NATS take values that Python does not: numbers of 100,000 digits, nesting of any depth, halves of
characters. One such value must not make a row unreadable, still less the rows beside it. It is shown as text.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

#: What is nested deeper is left out: Python's own limit depends on who calls.
MAX_DEPTH: Final = 100
#: Longer numbers are shown as text. Python reads at most 4,300 digits.
_MAX_DIGITS: Final = 1_000
#: How much longer JSON in lines may be.
_MAX_GROWTH: Final = 8
_DEEPER: Final = '"(nested too deep to be shown)"'
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_HALF: Final = re.compile("[\ud800-\udfff]")


def read_json(text: str | bytes) -> Any:
    """Return a value that `json.dumps` can write. Raises ValueError if the text is no JSON."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    if text.count("[") + text.count("{") > MAX_DEPTH:
        text = _shallow(text)
    try:
        found = json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=str)
    except RecursionError as error:  # what looks flat may be no JSON
        raise ValueError("it cannot be read") from error
    return _whole(found) if "\\u" in text else found


def json_of(value: Any) -> str:
    """What `read_json` has read, as text again."""
    return json.dumps(value, ensure_ascii=False)


def pretty_json(text: str) -> str:
    """JSON in lines; other text as it is, and JSON so deep that its lines would be mostly space."""
    most = _MAX_GROWTH * len(text) + 10_000
    parts: list[str] = []
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(read_json(text)):
            parts.append(part)
            most -= len(part)
            if most < 0:
                return _HALF.sub("\ufffd", text)
    except ValueError:
        return _HALF.sub("\ufffd", text)
    return "".join(parts)


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _MAX_DIGITS else digits


def _float(digits: str) -> float | str:
    found = float(digits)
    return found if math.isfinite(found) else digits


def _whole(value: Any) -> Any:
    """Replace halves of characters, which no encoding can write."""
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole(it) for it in value]
    if isinstance(value, dict):
        return {_whole(name): _whole(it) for name, it in value.items()}
    return value


def _shallow(text: str) -> str:
    """Leave out what is nested too deep."""
    parts: list[str] = []
    depth, kept = 0, 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "[" | "{":
                depth += 1
                if depth == MAX_DEPTH + 1:
                    parts += text[kept : token.start()], _DEEPER
            case "]" | "}":
                depth -= 1
                if depth == MAX_DEPTH:
                    kept = token.end()
    return "".join([*parts, text[kept:]]) if depth <= MAX_DEPTH else "".join(parts)
