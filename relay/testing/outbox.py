"""The outbox in memory: PORT-047-001."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from relay.domain.errors import DatabaseUnreachable
from relay.domain.model import OutboxEvent
from relay.domain.ordering import LANES
from relay.domain.policies import Published
from relay.ports import OutboxRow, PublishFailure
from relay.testing.clock import Clock

#: How long a claim may be open. After this time its rows are free, and it cannot commit.
_LEASE: Final = timedelta(seconds=5)
_NO_LANE: Final = -1


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """A row of the outbox, with the columns of ``outbox_events``. It is replaced at each commit, never changed."""

    event: OutboxEvent
    seq: int
    occurred_at: datetime
    available_at: datetime | None
    publish_attempts: int = 0
    publish_error: str | None = None
    published_at: datetime | None = None
    ack: Published | None = None
    dead_at: datetime | None = None
    generation: int = 0

    @property
    def lane(self) -> int:
        """The lane of its key; -1 for an event without order."""
        key = self.event.partition_key
        return zlib.crc32(key.encode()) % LANES if key else _NO_LANE

    def row(self) -> OutboxRow:
        """Return what a claim sees."""
        event = self.event
        return OutboxRow(
            str(event.id),
            event.event_type,
            event.event_version,
            event.payload,
            f"{self.occurred_at:%Y-%m-%dT%H:%M:%S.%fZ}",
            None if event.correlation_id is None else str(event.correlation_id),
            None if event.causation_id is None else str(event.causation_id),
            event.partition_key,
            event.topic,
            json.dumps(dict(event.headers)),
            self.publish_attempts,
            self.generation,
        )


@dataclass(slots=True, eq=False)
class _Claim:
    """Holds lanes, and rows of no lane, until it ends. ``changed``: what the end commits."""

    clock: Clock
    held: Mapping[str, StoredEvent] = field(default_factory=dict)
    lanes: Sequence[int] = ()
    rows: Sequence[OutboxRow] = ()
    busy: Collection[int] = ()
    more: bool = False
    changed: dict[str, StoredEvent] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
    since: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.since = self.clock.now

    async def mark_published(self, acks: Mapping[str, Published]) -> Mapping[str, datetime | str]:
        for id, ack in acks.items():
            was = self.held[id]
            self.changed[id] = replace(
                was,
                published_at=self.clock.now,
                publish_attempts=was.publish_attempts + 1,
                publish_error=None,
                dead_at=None,
                ack=ack,
            )
        return dict.fromkeys(acks, self.clock.now)

    async def increment_attempts(self, failures: Sequence[PublishFailure]) -> None:
        for failure in failures:
            was, now = self.held[failure.id], self.clock.now
            self.changed[failure.id] = replace(
                was,
                publish_attempts=was.publish_attempts + 1,
                publish_error=failure.error,
                available_at=was.available_at if failure.delay is None else now + failure.delay,
                dead_at=now if failure.delay is None else None,
            )


class MemoryOutbox:
    """Claims as the relay's own outbox does. ``events`` is for a test to look at.

    ``dead_head_blocks``: whether a dead event holds back the later ones of its key.
    """

    def __init__(self, clock: Clock | None = None, *, dead_head_blocks: bool = False) -> None:
        self.clock = clock or Clock()
        self.events: dict[str, StoredEvent] = {}
        self.down = False
        self._dead_head_blocks = dead_head_blocks
        self._claims: list[_Claim] = []

    def add(self, event: OutboxEvent) -> None:
        """Commit an event, as a transaction of the application does."""
        now = self.clock.now
        event.check_not_future(now)
        stored = StoredEvent(event, len(self.events) + 1, event.occurred_at or now, event.available_at)
        self.events[str(event.id)] = stored

    @asynccontextmanager
    async def find_unpublished(self, lanes: Sequence[int], limit: int, max_bytes: int) -> AsyncIterator[_Claim]:
        async with self._claim() as claim:
            claim.lanes = [lane for lane in lanes if not self._is_locked(lane)]
            due = [it for it in self._due() if it.lane in claim.lanes or it.lane == _NO_LANE]
            claim.busy = Counter(it.lane for it in due)
            share = -(-limit // max(1, len(claim.busy)))
            found = list(_shared(due, share))[:limit]
            taken = list(_within(sorted(found, key=lambda it: it.seq), max_bytes))
            claim.more = len(taken) < len(due)
            self._hold(claim, taken)
            yield claim

    @asynccontextmanager
    async def find_one(self, event_id: UUID) -> AsyncIterator[_Claim]:
        async with self._claim() as claim:
            if found := self._rows.get(str(event_id)):
                while self._is_locked(found.lane) or self._is_held(found):  # noqa: ASYNC110  (a moved clock frees, too)
                    await asyncio.sleep(0.001)
                found = self._rows[str(event_id)]
                if found.published_at is None and not any(self._goes_first(it) for it in self._before(found)):
                    claim.lanes = [] if found.lane == _NO_LANE else [found.lane]
                    self._hold(claim, [found])
            yield claim

    @property
    def _rows(self) -> dict[str, StoredEvent]:
        if self.down:
            raise DatabaseUnreachable("the outbox in memory is down")
        return self.events

    @asynccontextmanager
    async def _claim(self) -> AsyncIterator[_Claim]:
        """Open a claim, commit it on the way out; an exception rolls it back."""
        claim = _Claim(self.clock)
        self._claims.append(claim)
        try:
            yield claim
            if claim not in self._open():
                raise DatabaseUnreachable("the claim was open for too long: its rows are free again")
            self._rows.update(claim.changed)
        finally:
            self._claims.remove(claim)

    def _open(self) -> list[_Claim]:
        return [it for it in self._claims if self.clock.now - it.since <= _LEASE]

    def _hold(self, claim: _Claim, taken: Sequence[StoredEvent]) -> None:
        claim.held = {str(it.event.id): it for it in taken}
        claim.rows = [it.row() for it in taken]

    def _is_locked(self, lane: int) -> bool:
        return lane != _NO_LANE and any(lane in it.lanes for it in self._open())

    def _is_held(self, event: StoredEvent) -> bool:
        return any(str(event.event.id) in it.held for it in self._open())

    def _due(self) -> Iterator[StoredEvent]:
        now = self.clock.now
        for it in self._rows.values():
            ready = it.published_at is None and it.dead_at is None and (it.available_at or now) <= now
            if ready and not self._is_held(it) and not any(self._has_failed(head) for head in self._before(it)):
                yield it

    def _before(self, event: StoredEvent) -> Iterator[StoredEvent]:
        """The unpublished events of its key that may hold it back. A dead one may be passed over."""
        for it in self._rows.values():
            earlier = it.event.partition_key == event.event.partition_key != "" and it.seq < event.seq
            counts = it.published_at is None and (it.dead_at is None or self._dead_head_blocks)
            if earlier and counts and (it.generation == 0 or event.generation > 0):
                yield it

    def _has_failed(self, event: StoredEvent) -> bool:
        return event.publish_attempts > 0

    def _goes_first(self, event: StoredEvent) -> bool:
        """Whether it comes before a later one that is asked for alone. A delayed event does not."""
        return event.available_at is None or self._has_failed(event)


def _shared(due: Sequence[StoredEvent], share: int) -> Iterator[StoredEvent]:
    """Yield the first events of each lane."""
    taken: Counter[int] = Counter()
    for it in due:
        taken[it.lane] += 1
        if taken[it.lane] <= share:
            yield it


def _within(events: Sequence[StoredEvent], max_bytes: int) -> Iterator[StoredEvent]:
    """Yield the first events up to ``max_bytes`` in sum, but at least one."""
    size = 0
    for it in events:
        if size >= max_bytes:
            return
        size += len(it.event.payload)
        yield it
