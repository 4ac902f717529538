"""The outbox in memory."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from relay.domain.errors import DatabaseUnreachable
from relay.domain.large import Reference
from relay.domain.model import Lifespan, OutboxEvent
from relay.domain.ordering import LANES, UNORDERED
from relay.domain.policies import EXPIRED, Published
from relay.ports import Expiry, OutboxRow, PublishFailure
from relay.testing.clock import Clock

#: How long a claim may be open. After this time its rows are free, and it cannot commit.
_LEASE: Final = timedelta(seconds=5)
_NO_LANE: Final = -1


class StoredEvent(NamedTuple):
    """An event of the outbox. ``row`` is what a claim sees; the rest has the names of the columns."""

    row: OutboxRow
    seq: int
    available_at: datetime | None
    publish_error: str | None = None
    published_at: datetime | None = None
    ack: Published | None = None
    dead_at: datetime | None = None
    expires_at: datetime | None = None

    @property
    def lane(self) -> int:
        """The lane of its key; -1 for an event without order."""
        key = self.row.partition_key
        return zlib.crc32(key.encode()) % LANES if key else _NO_LANE

    @property
    def has_failed(self) -> bool:
        """Whether an attempt to publish it has failed."""
        return self.row.publish_attempts > 0

    def tried(self, *, counts: bool = True, **changes: Any) -> StoredEvent:
        """Return the event after one more attempt. The first attempt always counts."""
        attempts = max(1, self.row.publish_attempts + counts)
        return self._replace(row=self.row._replace(publish_attempts=attempts), **changes)


@dataclass(slots=True, eq=False)
class _MemoryClaim:
    """Holds lanes, and rows of no lane, until it ends. ``changed``: what the end commits."""

    clock: Clock
    held: Mapping[str, StoredEvent] = field(default_factory=dict)
    lanes: Sequence[int] = ()
    rows: Sequence[OutboxRow] = ()
    busy: Collection[int] = ()
    more: bool = False
    references: Mapping[str, Reference] = field(default_factory=dict)
    changed: dict[str, StoredEvent] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
    since: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.since = self.clock.now

    async def mark_published(self, acks: Mapping[str, Published]) -> Mapping[str, datetime | str]:
        now = self.clock.now
        for id, ack in acks.items():
            self.changed[id] = self._now(id).tried(publish_error=None, published_at=now, ack=ack, dead_at=None)
        return dict.fromkeys(acks, now)

    def _now(self, id: str) -> StoredEvent:
        return self.changed.get(id, self.held[id])

    async def expire(self, events: Mapping[str, timedelta | None]) -> Mapping[str, Expiry]:
        now, found = self.clock.now, {}
        for id, age in events.items():
            it = self.held[id]
            due = max(_moment(it.row.occurred_at), it.available_at or _moment(it.row.occurred_at))
            ends = it.expires_at or due + (age or timedelta())
            stale = ends <= now
            noted = it._replace(expires_at=ends)
            over = noted._replace(published_at=now, dead_at=now, publish_error=EXPIRED)
            self.changed[id] = over if stale else noted
            found[id] = Expiry(stale, _text(ends), (ends - now).total_seconds())
        return found

    async def increment_attempts(self, failures: Sequence[PublishFailure]) -> None:
        for it in failures:
            now = self.clock.now
            after = {"dead_at": now} if it.delay is None else {"dead_at": None, "available_at": now + it.delay}
            self.changed[it.id] = self._now(it.id).tried(counts=it.counts, publish_error=it.error, **after)


class MemoryOutbox:
    """Claims as the relay's own outbox does. Tests may read ``events``.

    ``dead_head_blocks``: whether a dead event holds back the later ones of its key.
    """

    def __init__(self, clock: Clock | None = None, *, dead_head_blocks: bool = False) -> None:
        self.clock = clock or Clock()
        self.events: dict[str, StoredEvent] = {}
        self.down = False
        self._dead_head_blocks = dead_head_blocks
        self._claims: list[_MemoryClaim] = []

    def add(self, event: OutboxEvent) -> None:
        """Commit an event, as a transaction of the application does."""
        event.check_not_future(self.clock.now)
        row = OutboxRow(
            str(event.id),
            event.event_type,
            event.event_version,
            event.payload,
            _text(event.occurred_at or self.clock.now),
            None if event.correlation_id is None else str(event.correlation_id),
            None if event.causation_id is None else str(event.causation_id),
            event.partition_key,
            event.topic,
            json.dumps(dict(event.headers)),
            publish_attempts=0,
            generation=0,
            originals=json.dumps(dict(event.originals)) if event.originals else None,
            stream=event.stream,
            seq=len(self.events) + 1,
        )
        timing = event.timing or Lifespan()
        due = self.clock.now + timing.delay if timing.delay else event.available_at
        ends = timing.expires_at
        if timing.expires_in is not None:
            ends = max(_moment(row.occurred_at), due or self.clock.now) + timing.expires_in
        row = row._replace(expires_at=None if ends is None else _text(ends))
        self.events[row.id] = StoredEvent(row, len(self.events) + 1, due, expires_at=ends)

    @asynccontextmanager
    async def find_unpublished(
        self, lanes: Sequence[int], limit: int, max_bytes: int
    ) -> AsyncIterator[_MemoryClaim]:
        async with self._claim() as claim:
            claim.lanes = [lane for lane in lanes if not self._is_locked(lane)]
            due = [it for it in self._due() if it.lane in claim.lanes or it.lane == _NO_LANE]
            claim.busy = Counter(it.lane for it in due)
            quota = -(-limit // max(1, len(claim.busy)))
            first = list(_first_of_lanes(due, quota))[:limit]
            claimed = list(_within(sorted(first, key=lambda it: it.seq), max_bytes))
            claim.more = len(claimed) < len(due)
            self._hold(claim, claimed)
            yield claim

    @asynccontextmanager
    async def find_one(self, event_id: UUID) -> AsyncIterator[_MemoryClaim]:
        async with self._claim() as claim:
            if stored := self._rows.get(str(event_id)):
                while self._is_locked(stored.lane) or self._is_held(stored):  # noqa: ASYNC110  (a moved clock frees, too)
                    await asyncio.sleep(0.001)
                stored = self._rows[str(event_id)]
                # A delayed event does not come first.
                earlier = any(it.available_at is None or it.has_failed for it in self._before(stored))
                if stored.published_at is None and not earlier:
                    claim.lanes = [] if stored.lane == _NO_LANE else [stored.lane]
                    self._hold(claim, [stored])
            yield claim

    @property
    def _rows(self) -> dict[str, StoredEvent]:
        if self.down:
            raise DatabaseUnreachable("the outbox in memory is down")
        return self.events

    @asynccontextmanager
    async def _claim(self) -> AsyncIterator[_MemoryClaim]:
        """Open a claim, commit it on the way out; an exception rolls it back."""
        claim = _MemoryClaim(self.clock)
        self._claims.append(claim)
        try:
            yield claim
            if claim not in self._open():
                raise DatabaseUnreachable("the claim was open for too long: its rows are free again")
            self._rows.update(claim.changed)
        finally:
            self._claims.remove(claim)

    def _open(self) -> list[_MemoryClaim]:
        return [it for it in self._claims if self.clock.now - it.since <= _LEASE]

    def _hold(self, claim: _MemoryClaim, events: Sequence[StoredEvent]) -> None:
        claim.held = {it.row.id: it for it in events}
        claim.rows = [it.row for it in events]

    def _is_locked(self, lane: int) -> bool:
        return lane != _NO_LANE and any(lane in it.lanes for it in self._open())

    def _is_held(self, event: StoredEvent) -> bool:
        return any(event.row.id in it.held for it in self._open())

    def _due(self) -> Iterator[StoredEvent]:
        now = self.clock.now
        for it in self._rows.values():
            ready = it.published_at is None and it.dead_at is None and (it.available_at or now) <= now
            if ready and not self._is_held(it) and not any(head.has_failed for head in self._before(it)):
                yield it

    def _before(self, event: StoredEvent) -> Iterator[StoredEvent]:
        """The unpublished events of its key that may hold it back. A dead event may be skipped."""
        for it in self._rows.values():
            earlier = it.row.partition_key == event.row.partition_key != UNORDERED and it.seq < event.seq
            if earlier and it.published_at is None and (it.dead_at is None or self._dead_head_blocks):
                yield it


def _text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _first_of_lanes(due: Sequence[StoredEvent], quota: int) -> Iterator[StoredEvent]:
    """Yield at most ``quota`` events of each lane, the first ones."""
    counts: Counter[int] = Counter()
    for it in due:
        counts[it.lane] += 1
        if counts[it.lane] <= quota:
            yield it


def _within(events: Sequence[StoredEvent], max_bytes: int) -> Iterator[StoredEvent]:
    """Yield the first events up to ``max_bytes`` in sum, but at least one."""
    size = 0
    for it in events:
        if size >= max_bytes:
            return
        size += len(it.row.payload or "")
        yield it
