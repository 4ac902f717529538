"""Order per key (DESIGN §5, §6): lanes, shards and chains, and the keys of received messages.

A key hashes to one of 64 fixed lanes. A publisher job owns a shard: a fixed set of lanes. It locks the lanes
before it claims, so two jobs never hold events of one key at the same time. Inside a batch, the events of one key
form a chain: each event is sent only after the one before it is acknowledged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import unquote

from relay.domain.errors import MalformedMessage

LANES: Final = 64
#: The partition key of events without order.
UNORDERED: Final = ""
#: The header that carries a message's partition key.
KEY: Final = "Relay-Partition-Key"
#: What happens to the messages of a key behind a dead one. "skip": they are handled. "block": they wait for an
#: operator. "park": they wait too, and are acknowledged.
FailedHead: TypeAlias = Literal["block", "park", "skip"]
#: After so many seconds, schedulers and workers know the same number of workers.
_AGREED_AFTER_S: Final = 8.0
#: The longest key that is sure to fit into an index of PostgreSQL, in characters.
_MAX_KEY_CHARS: Final = 600

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``index`` of ``count`` of a context's lanes."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count <= LANES:
            raise ValueError(f"shard {self.index} of {self.count} does not exist")

    @property
    def lanes(self) -> list[int]:
        """The lanes of this shard."""
        return list(range(self.index, LANES, self.count))


def shards_of(shards: int, workers: int) -> int:
    """How many jobs publish a context with a backlog: ``shards`` for each worker, at most one for each lane."""
    return min(LANES, shards * workers)


def goes_on(count: int, shards: int, workers: int, seconds: float) -> bool:
    """Whether a drain of one of ``count`` shards goes on after so many seconds, or ends so that others begin."""
    return seconds < _AGREED_AFTER_S or count == shards_of(shards, workers)


def halves(lanes: Sequence[int], busy: Collection[int]) -> tuple[list[int], list[int]]:
    """Divide the lanes into two halves, with the busy lanes shared evenly."""
    ordered = sorted(lanes, key=lambda lane: lane not in busy)
    return ordered[::2], ordered[1::2]


def default_key(aggregate_type: str, aggregate_id: str) -> str:
    """The partition key of an event without an explicit key: its aggregate."""
    return f"{aggregate_type}:{aggregate_id}"


def partition_key(headers: Mapping[str, str], elsewhere: Any = None) -> str | None:
    """The key that the producer gave to a message; None without one. Raises MalformedMessage.

    ``elsewhere``: the key outside of the headers, which counts if they have none.
    """
    key = unquote(headers.get(KEY, "")) or elsewhere or ""
    if not isinstance(key, str):
        raise MalformedMessage("is no text", field="partition_key")
    if "\x00" in key or (not key.isascii() and any("\ud800" <= char <= "\udfff" for char in key)):
        raise MalformedMessage("cannot be stored as text", field=KEY)
    return key or None


def order_key(partition_key: str | None) -> str | None:
    """The key that orders a received message; None for no order. A long key becomes its hash."""
    if not partition_key or len(partition_key) <= _MAX_KEY_CHARS:
        return partition_key or None
    return f"sha256:{hashlib.sha256(partition_key.encode()).hexdigest()}"


def chains(items: Iterable[Item], key: Callable[[Item], str]) -> list[list[Item]]:
    """Group ``items`` by key and keep their order. Every unordered item is its own chain."""
    by_key: dict[str, list[Item]] = {}
    result: list[list[Item]] = []
    for item in items:
        name = key(item)
        if name != UNORDERED and name in by_key:
            by_key[name].append(item)
            continue
        result.append([item])
        by_key[name] = result[-1]
    return result
