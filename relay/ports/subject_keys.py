"""The port of the keys of personal values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol
from uuid import UUID


class WrappedKey(NamedTuple):
    """A key as it is stored: the name of the master key, and the bytes; None if its person was forgotten."""

    id: UUID
    master: str
    wrapped: bytes | None


class SubjectKeys(Protocol):
    """The keys of one context. It locks nothing, and may be asked at any time by anybody."""

    async def find(self, ids: Sequence[UUID]) -> Sequence[WrappedKey]:
        """The keys of these ids that there are. Raises Outage."""
