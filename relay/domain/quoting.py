"""Text of any kind in headers, which take plain ASCII: percent-encoded where it is not plain."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

#: Text that needs no quoting.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.\-/:@!$&'()*+,;=~]*")


def quoted(text: str) -> str:
    """A text as the value of a header; `urllib.parse.unquote` gives it back."""
    return text if _PLAIN.fullmatch(text) else quote(text, safe="/:@!$&'()*+,;=~")


def header_text(text: str | None) -> str | None:
    """The value of a header that may be missing."""
    return None if text is None else quoted(text)


def read_header_text(value: str | None) -> str | None:
    """The text of a header that may be missing."""
    return None if value is None else unquote(value)
