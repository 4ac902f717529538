"""The token of a claim: a UUID that also says when the row was claimed, and which worker did it.

So a row that runs names its worker without any further write. Version 8 of UUIDs leaves its bits to us: 48 for
milliseconds, 32 for the worker, 42 by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final
from uuid import UUID

from relay.domain.moments import nearest

_VERSION: Final = 8
#: The bits by chance: 12 beside the version, 30 at the end.
CHANCE_BITS: Final = 42
_END_BITS: Final = 30


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a token says: when the row was claimed, by the worker's clock, and the mark of the worker."""

    at: datetime
    mark: int


def mark_of(host: str, pid: int) -> int:
    """The mark of a worker: 32 bits."""
    return int.from_bytes(blake2b(f"{host}:{pid}".encode(), digest_size=4).digest())


def token_of(milliseconds: int, mark: int, chance: int) -> UUID:
    """Make a token. ``chance``: `CHANCE_BITS` bits, so that no two claims have one token."""
    high = milliseconds << 16 | _VERSION << 12 | chance >> _END_BITS
    return UUID(int=high << 64 | 2 << 62 | mark << _END_BITS | chance & (1 << _END_BITS) - 1)


def read_token(token: UUID) -> Claimed | None:
    """Read a token. None: a worker of an earlier release made it, or somebody else."""
    if token.version != _VERSION:
        return None
    try:
        at = nearest(datetime.fromtimestamp((token.int >> 80) / 1000, UTC))
    except (ValueError, OverflowError):
        return None
    return Claimed(at, token.int >> _END_BITS & 0xFFFFFFFF)
