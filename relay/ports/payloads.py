"""The port of the content of large payloads."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from relay.domain.large import Reference


class PayloadSource(Protocol):
    """Where the content of large payloads is read. It locks nothing, and may be asked at any time."""

    def pieces(self, reference: Reference) -> AsyncGenerator[bytes, None]:
        """The content from its beginning on. Nobody has checked it. Raises Outage, also in the middle."""
