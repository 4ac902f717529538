"""The inbox in memory, without order per key."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID, uuid4

from relay.domain.disclosure import printable
from relay.domain.errors import DatabaseUnreachable, MalformedMessage
from relay.domain.identity import MSG_ID
from relay.domain.model import Finished
from relay.domain.policies import (
    EXPIRED,
    UNLIMITED_ATTEMPTS,
    DeadLetter,
    DeadLetterClass,
    Retry,
    TooLate,
    unanswered,
)
from relay.ports import ClaimedMessage, InboxRow, Inserted
from relay.testing.clock import Clock

#: A retry may begin this much early: queues do not deliver to the millisecond.
_EARLY: Final = timedelta(milliseconds=50)
#: An acknowledgement may be under way for this time.
_UNDER_WAY: Final = timedelta(seconds=1)


@dataclass(slots=True)
class StoredMessage:
    """A row of the inbox, with the columns of ``inbox_messages``. A verdict is in ``row.rejected``."""

    row: InboxRow
    received_at: datetime
    enqueued_at: datetime
    attempts: int = 0
    requeues: int = 0
    last_error: str | None = None
    next_attempt_at: datetime | None = None
    processed_at: datetime | None = None
    dead_lettered_at: datetime | None = None
    let_go_at: datetime | None = None
    token: UUID | None = None
    claimed_until: datetime | None = None
    expires_at: datetime | None = None

    @property
    def finished_at(self) -> datetime | None:
        """When it was processed or dead-lettered."""
        return self.processed_at or self.dead_lettered_at

    @property
    def failed(self) -> bool:
        """Whether it has failed, and is tried again."""
        return self.next_attempt_at is not None

    def hangs(self, now: datetime, longer: timedelta) -> bool:
        """Whether it runs, and came into the queue ``longer`` ago."""
        return self.claimed_until is not None and self.claimed_until > now and self.enqueued_at < now - longer

    def release(self, until: datetime | None = None) -> None:
        """Give up the claim. With ``until``, the message is not due before that time."""
        self.token = self.claimed_until = None
        self.next_attempt_at = until
        self.enqueued_at = until or self.enqueued_at


class MemoryInbox:
    """Receives, settles and audits. Tests may read ``messages``.

    ``grace``: when a row is this long overdue for a claim, `overdue` treats it as lost.
    """

    def __init__(self, clock: Clock | None = None, *, grace: timedelta = timedelta(seconds=5)) -> None:
        self.clock = clock or Clock()
        self.messages: dict[UUID, StoredMessage] = {}
        #: The key of the row that a subscription has of a message.
        self._keys: dict[tuple[str, UUID], UUID] = {}
        self.down = False
        self._grace = grace

    @property
    def _rows(self) -> dict[UUID, StoredMessage]:
        if self.down:
            raise DatabaseUnreachable("the inbox in memory is down")
        return self.messages

    def requeue(self, message_id: UUID) -> None:
        """Do what an operator's requeue does to a dead message: it is due at once, with new attempts."""
        stored, now = self._rows[message_id], self.clock.now
        row = stored.row._replace(rejected=None)
        self._rows[message_id] = StoredMessage(row, stored.received_at, now, requeues=stored.requeues + 1)

    # --- receive ---

    async def ping(self) -> None:
        _ = self._rows

    async def insert(self, rows: Sequence[InboxRow], *, lasting: bool = True) -> Sequence[Inserted]:
        if any("\x00" in text for row in rows for text in _texts(row)):
            raise MalformedMessage("the inbox cannot store it: a text holds a NUL")
        return [self._insert(row) for row in {row.id: row for row in rows}.values()]

    def _insert(self, row: InboxRow) -> Inserted:
        now, known = self.clock.now, self._keys.get((row.subscription, row.id))
        stored = None if known is None else self._rows.get(known)
        if stored is not None and row.rejected is not None and stored.row.body != row.body:
            return self._insert(row.anew())
        if stored is None:
            while row.message_id in self._rows:
                row = row.apart()
            self._keys[row.subscription, row.id] = row.message_id
            # An inbox without order keeps neither the key of the order nor the number of the delivery.
            self._rows[row.message_id] = StoredMessage(row._replace(order_key=None, consumer_seq=None), now, now)
            return Inserted(row.message_id, new=True, done=False, source_id=row.source_id)
        stored.row = stored.row._replace(
            ack_subject=row.ack_subject or stored.row.ack_subject, stream=row.stream, stream_seq=row.stream_seq
        )
        key, done = stored.row.message_id, bool(stored.finished_at or stored.let_go_at)
        return Inserted(key, new=False, done=done, source_id=stored.row.source_id)

    async def note_expiry(self, ends: Mapping[UUID, datetime | None], expires_in: timedelta | None = None) -> None:
        for id, named in ends.items():
            stored = self._rows[id]
            since = stored.row.occurred_at or stored.received_at
            times = [it for it in (named, None if expires_in is None else since + expires_in) if it is not None]
            if stored.finished_at is None and stored.expires_at is None and times:
                stored.expires_at = min(times)

    async def due(self, subscription: str, limit: int, *, later: bool = False) -> int:
        now = self.clock.now
        ready = [
            it
            for it in self._unfinished(subscription)
            if later or (it.enqueued_at <= now and it.next_attempt_at is None)
        ]
        return min(len(ready), limit)

    # --- settle ---

    async def claim(
        self, message_id: UUID, lease: timedelta, max_attempts: int = UNLIMITED_ATTEMPTS
    ) -> ClaimedMessage | None:
        stored, since = self._rows.get(message_id), time.monotonic()
        if stored is None or not self._is_free(stored, _EARLY):
            return None
        if stored.row.rejected is None and stored.expires_at is not None and stored.expires_at <= self.clock.now:
            stored.row = stored.row._replace(rejected=TooLate(EXPIRED, DeadLetterClass.DETERMINISTIC))
        elif stored.row.rejected is None and stored.attempts >= max_attempts:
            stored.row = stored.row._replace(rejected=unanswered(max_attempts))
        elif stored.row.rejected is None:
            stored.attempts += 1
        stored.token, stored.claimed_until = uuid4(), self.clock.now + lease
        return ClaimedMessage(
            stored.token, stored.row, stored.attempts, stored.requeues, since, stored.received_at
        )

    async def renew(self, claim: ClaimedMessage, lease: timedelta) -> bool:
        if stored := self._held(claim):
            stored.claimed_until = self.clock.now + lease
        return stored is not None

    async def mark_all_processed(self, claims: Sequence[ClaimedMessage]) -> Sequence[ClaimedMessage]:
        return [claim for claim in claims if self._mark_processed(claim)]

    def _mark_processed(self, claim: ClaimedMessage) -> bool:
        stored = self._held(claim)
        if stored is None or stored.row.rejected is not None:
            return False
        stored.processed_at = self.clock.now
        stored.release()
        return True

    async def record_error(self, claim: ClaimedMessage, disposition: Retry) -> bool:
        if stored := self._held(claim):
            stored.last_error = printable(disposition.error)
            stored.attempts -= int(not disposition.counts)
            stored.release(self.clock.now + disposition.delay)
        return stored is not None

    async def reject(self, claim: ClaimedMessage, disposition: DeadLetter) -> bool:
        if stored := self._held(claim):
            stored.row = stored.row._replace(rejected=disposition)
            stored.last_error = printable(disposition.reason)
        return stored is not None

    async def expire(self, claim: ClaimedMessage) -> bool:
        if stored := self._held(claim):
            stored.processed_at, stored.last_error = self.clock.now, EXPIRED
            stored.release()
        return stored is not None

    async def mark_dead_lettered(self, claim: ClaimedMessage) -> bool:
        if stored := self._held(claim):
            stored.dead_lettered_at = self.clock.now
            stored.release()
        return stored is not None

    async def release(self, claim: ClaimedMessage, delay: timedelta) -> bool:
        if stored := self._held(claim):
            stored.release(self.clock.now + delay)
        return stored is not None

    def _held(self, claim: ClaimedMessage) -> StoredMessage | None:
        """Return the row that a claim still holds."""
        stored = self._rows.get(claim.row.message_id)
        return stored if stored is not None and stored.token == claim.token else None

    def _is_free(self, stored: StoredMessage, early: timedelta = timedelta(0)) -> bool:
        now = self.clock.now
        claimed = stored.claimed_until is not None and stored.claimed_until >= now
        waits = stored.next_attempt_at is not None and stored.next_attempt_at > now + early
        return stored.finished_at is None and not claimed and not waits

    # --- audit ---

    async def overdue(
        self,
        subscription: str,
        limit: int,
        waited: timedelta = timedelta(0),
        *,
        at_once: bool = False,
        failed: bool | None = None,
    ) -> Sequence[UUID]:
        lost_before = self.clock.now - (timedelta(0) if at_once else self._grace + waited)
        rows = [it for it in self._unfinished(subscription) if failed is None or it.failed is failed]
        waiting = sorted(rows, key=lambda it: it.enqueued_at)
        lost = [it for it in waiting if it.enqueued_at < lost_before and self._is_free(it)][:limit]
        for stored in lost:
            stored.enqueued_at = self.clock.now
        return [it.row.message_id for it in lost]

    async def waiting(self, subscription: str, page: int, *, due: bool = False) -> AsyncIterator[Sequence[str]]:
        now = self.clock.now
        waits = [
            it
            for it in self._unfinished(subscription)
            if it.let_go_at is None and (not due or it.next_attempt_at is None or it.next_attempt_at <= now)
        ]
        rows = sorted(waits, key=lambda it: (it.received_at, it.row.message_id))
        for first in range(0, len(rows), page):
            yield [it.row.ack_subject for it in rows[first : first + page]]

    async def missing(self, subscription: str, stream: str, after: int, upto: int) -> Sequence[int]:
        held = {it.row.stream_seq for it in self._of(subscription, stream)}
        return [seq for seq in range(after + 1, upto + 1) if seq not in held]

    async def finished(
        self, subscription: str, stream: str, after: int, upto: int, *, on_receipt: bool = False
    ) -> Sequence[Finished]:
        before = self.clock.now - _UNDER_WAY
        messages = [
            Finished(it.row.id, it.row.stream_seq, it.row.ack_subject, it.row.headers.get(MSG_ID))
            for it in self._of(subscription, stream)
            if any(at and at < before for at in (it.finished_at, it.let_go_at, on_receipt and it.received_at))
        ]
        return sorted((it for it in messages if after < it.stream_seq <= upto), key=lambda it: it.stream_seq)

    # --- window ---

    async def let_go(
        self, subscription: str, keep: int, limit: int, hangs: timedelta | None = None
    ) -> Sequence[str]:
        now = self.clock.now
        holding = [
            it
            for it in self._unfinished(subscription)
            if it.let_go_at is None and (it.failed or (hangs is not None and it.hangs(now, hangs)))
        ]
        newest = sorted(holding, key=lambda it: it.received_at, reverse=True)
        gone = newest[keep : keep + limit]
        for stored in gone:
            stored.let_go_at = now
        return [it.row.ack_subject for it in gone]

    def _of(self, subscription: str, stream: str) -> Iterator[StoredMessage]:
        rows = self._rows.values()
        return (it for it in rows if (it.row.subscription, it.row.stream) == (subscription, stream))

    def _unfinished(self, subscription: str) -> Iterator[StoredMessage]:
        rows = self._rows.values()
        return (it for it in rows if it.finished_at is None and it.row.subscription == subscription)


def _texts(row: InboxRow) -> list[str]:
    headers = [text for pair in row.headers.items() for text in pair]
    return [value for value in (*row, *headers) if isinstance(value, str)]
