"""Check the accounts: compare the committed events with what each place holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

_SHOWN: Final = 5


class SampleVerdict(StrEnum):
    """What the handler is asked to do with an event, see `relay.devstack.sample`."""

    OK = "ok"
    ALREADY = "already"
    POISON = "poison"
    FLAKY = "flaky"
    SLOW = "slow"

    @property
    def has_effect(self) -> bool:
        """Whether the handler's effect must exist in the end."""
        return self in (SampleVerdict.OK, SampleVerdict.FLAKY, SampleVerdict.SLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The event ids that each place holds.

    ``committed`` and ``rolled_back`` are what the producer itself remembers, ``business`` the rows of its table.
    ``done`` are the handler's calls answered 200, ``effects`` the rows they wrote. A sequence repeats an id as
    often as the place holds it.
    """

    committed: Mapping[UUID, SampleVerdict]
    rolled_back: Set[UUID]
    business: Sequence[UUID]
    outbox: Set[UUID]
    published: Set[UUID]
    stream: Sequence[UUID]
    received: Set[UUID]
    handled: Set[UUID]
    dead_lettered: Set[UUID]
    done: Sequence[UUID]
    effects: Sequence[UUID]
    dlq: Sequence[UUID]
    unacknowledged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The live figures, in the order of an event's way."""

    committed: int
    published: int
    received: int
    handled: int
    retried: int
    dead_lettered: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds from the write of the business row, just before its commit, sorted.

    ``handled`` leaves out events that the handler refused at first: they wait on purpose.
    """

    published: Sequence[float]
    handled: Sequence[float]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and its events."""

    what: str
    ids: Sequence[UUID] = ()

    def __str__(self) -> str:
        if not self.ids:
            return self.what
        shown = ", ".join(str(id) for id in self.ids[:_SHOWN])
        rest = f" and {len(self.ids) - _SHOWN} more" if len(self.ids) > _SHOWN else ""
        return f"{len(self.ids)} {self.what}: {shown}{rest}"


def audit(books: Books) -> list[Fault]:
    """Return every fault. Without faults the accounts balance."""
    faults = [Fault(what, sorted(ids)) for what, ids in _checks(books) if ids]
    if books.unacknowledged:
        faults.append(Fault(f"{books.unacknowledged} messages that are not acknowledged in JetStream"))
    return faults


def _checks(books: Books) -> Iterator[tuple[str, Set[UUID]]]:
    """Yield each broken rule, and the events that break it."""
    committed, business, stream = books.committed.keys(), set(books.business), set(books.stream)
    yield "committed without their business row", committed - business
    yield "business rows that were never committed", business - committed
    yield "committed, but not published", committed - books.published
    yield "published, but not in the stream", books.published - stream
    yield "in the stream more than once", _repeated(books.stream)
    yield "in the stream, but never committed", stream - committed
    yield "committed, and neither handled nor dead-lettered", committed - books.handled - books.dead_lettered
    yield "both handled and dead-lettered", books.handled & books.dead_lettered
    yield "received, but never committed", books.received - committed
    yield from _rolled_back(books)
    expected = {id for id, verdict in books.committed.items() if verdict.has_effect}
    poison = {id for id, verdict in books.committed.items() if verdict is SampleVerdict.POISON}
    effects, dlq = set(books.effects), set(books.dlq)
    yield "with a second effect", _repeated(books.done) | _repeated(books.effects)
    yield "answered 200, but without the effect", set(books.done) - effects
    yield "without their effect", expected - effects
    yield "with an effect that should have none", effects - expected
    yield "poison, but handled", poison & books.handled
    yield "good, but dead-lettered", books.dead_lettered - poison
    yield "dead-lettered, but not in the dead-letter stream", books.dead_lettered - dlq
    yield "in the dead-letter stream more than once", _repeated(books.dlq)
    yield "in the dead-letter stream, but not dead-lettered", dlq - books.dead_lettered


def _rolled_back(books: Books) -> Iterator[tuple[str, Set[UUID]]]:
    places = {
        "the business table": books.business,
        "the outbox": books.outbox,
        "the stream": books.stream,
        "the inbox": books.received,
        "the handler's effects": books.effects,
        "the dead letters": books.dlq,
    }
    for place, ids in places.items():
        yield f"rolled back, but in {place}", books.rolled_back & set(ids)


def _repeated(ids: Sequence[UUID]) -> set[UUID]:
    return {id for id, count in Counter(ids).items() if count > 1}
