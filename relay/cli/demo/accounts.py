"""Check whether the accounts balance: compare the committed events with the records of every place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

_SHOWN: Final = 5


class Verdict(StrEnum):
    """What the handler is asked to do with an event, see `relay.devstack.sample`."""

    OK = "ok"
    ALREADY = "already"
    POISON = "poison"
    FLAKY = "flaky"
    SLOW = "slow"

    @property
    def has_effect(self) -> bool:
        """Whether the handler's effect must be there in the end."""
        return self in (Verdict.OK, Verdict.FLAKY, Verdict.SLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The event ids that each place holds.

    ``committed`` and ``rolled_back`` are the producer's own memory, ``business`` the rows of its table. ``done``
    are the handler's calls answered 200, ``effects`` the rows they wrote. A sequence repeats an id as often as the
    place holds it.
    """

    committed: Mapping[UUID, Verdict]
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


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that does not balance, and the events it is about."""

    what: str
    ids: Sequence[UUID] = ()

    def __str__(self) -> str:
        if not self.ids:
            return self.what
        shown = ", ".join(str(id) for id in self.ids[:_SHOWN])
        rest = f" and {len(self.ids) - _SHOWN} more" if len(self.ids) > _SHOWN else ""
        return f"{len(self.ids)} {self.what}: {shown}{rest}"


def audit(books: Books) -> list[Fault]:
    """Return every fault; none means that all accounts balance."""
    checks = (_business, _publishing, _delivery, _rolled_back, _effects, _outcomes, _dead_letters)
    faults = [fault for check in checks for fault in check(books) if fault.ids]
    if books.unacknowledged:
        faults.append(Fault(f"{books.unacknowledged} messages that JetStream still waits to see acknowledged"))
    return faults


def _business(books: Books) -> Iterator[Fault]:
    yield Fault("committed without their business row", _sorted(books.committed.keys() - set(books.business)))
    yield Fault("business rows that nobody committed", _sorted(set(books.business) - books.committed.keys()))


def _publishing(books: Books) -> Iterator[Fault]:
    yield Fault("committed and not published", _sorted(books.committed.keys() - books.published))
    yield Fault("published and not in the stream", _sorted(books.published - set(books.stream)))
    yield Fault("in the stream more than once", _repeated(books.stream))
    yield Fault("in the stream and never committed", _sorted(set(books.stream) - books.committed.keys()))


def _delivery(books: Books) -> Iterator[Fault]:
    finished = books.handled | books.dead_lettered
    yield Fault("committed, and neither handled nor dead-lettered", _sorted(books.committed.keys() - finished))
    yield Fault("both handled and dead-lettered", _sorted(books.handled & books.dead_lettered))
    yield Fault("received and never committed", _sorted(books.received - books.committed.keys()))


def _rolled_back(books: Books) -> Iterator[Fault]:
    places = {
        "the business table": books.business,
        "the outbox": books.outbox,
        "the stream": books.stream,
        "the inbox": books.received,
        "the handler's effects": books.effects,
        "the dead letters": books.dlq,
    }
    for place, ids in places.items():
        yield Fault(f"rolled back and yet in {place}", _sorted(books.rolled_back & set(ids)))


def _effects(books: Books) -> Iterator[Fault]:
    wanted = {id for id, verdict in books.committed.items() if verdict.has_effect}
    yield Fault("with a second effect", _sorted({*_repeated(books.done), *_repeated(books.effects)}))
    yield Fault("answered 200 and without the effect", _sorted(set(books.done) - set(books.effects)))
    yield Fault("without their effect", _sorted(wanted - set(books.effects)))
    yield Fault("with an effect that should have none", _sorted(set(books.effects) - wanted))


def _outcomes(books: Books) -> Iterator[Fault]:
    poison = {id for id, verdict in books.committed.items() if verdict is Verdict.POISON}
    yield Fault("poison and yet handled", _sorted(poison & books.handled))
    yield Fault("sound and yet dead-lettered", _sorted(books.dead_lettered - poison))


def _dead_letters(books: Books) -> Iterator[Fault]:
    yield Fault("dead-lettered and not in the dead-letter stream", _sorted(books.dead_lettered - set(books.dlq)))
    yield Fault("in the dead-letter stream more than once", _repeated(books.dlq))
    yield Fault("in the dead-letter stream and not dead-lettered", _sorted(set(books.dlq) - books.dead_lettered))


def _repeated(ids: Sequence[UUID]) -> list[UUID]:
    return _sorted({id for id, count in Counter(ids).items() if count > 1})


def _sorted(ids: Set[UUID]) -> list[UUID]:
    return sorted(ids)
