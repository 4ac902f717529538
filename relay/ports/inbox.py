"""PORT-047-002: the messages that were received, from their arrival to their outcome."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from uuid import UUID

from relay.domain.identity import (
    CAUSATION_ID,
    CORRELATION_ID,
    ID,
    NO_ORIGINALS,
    Id,
    Originals,
    content_id,
    shown,
    view_id,
)
from relay.domain.model import Finished
from relay.domain.policies import UNLIMITED_ATTEMPTS, DeadLetter, Retry


class InboxRow(NamedTuple):
    """A received message, before or after it is stored in the inbox. An unreadable message has no event type.

    ``message_id``: the key of its row, which its job, its claim and its dead letter name. ``source_id``: the id
    that its source gave it, if another subscription has the row of that id; otherwise None.
    """

    message_id: UUID
    subject: str
    subscription: str
    stream: str
    stream_seq: int
    ack_subject: str
    body: bytes
    headers: Mapping[str, str]
    event_type: str | None = None
    event_version: int | None = None
    occurred_at: datetime | None = None
    partition_key: str | None = None
    correlation_id: UUID | None = None
    causation_id: UUID | None = None
    #: Set if the message is dead on arrival: why it could not be read.
    rejected: DeadLetter | None = None
    #: The key that orders this message; None where no order is kept.
    order_key: str | None = None
    #: The number of the delivery.
    consumer_seq: int | None = None
    originals: Originals = NO_ORIGINALS
    source_id: UUID | None = None

    @property
    def id(self) -> UUID:
        """The id by which its source and its subscription know it."""
        return self.source_id or self.message_id

    def apart(self) -> InboxRow:
        """The same message with a key made from its subscription, because another message has its key."""
        return self._replace(
            message_id=view_id(self.subscription, self.message_id),
            source_id=self.id,
            originals={ID: str(self.id), **self.originals},
        )

    def anew(self) -> InboxRow:
        """The same unreadable message with an id of its content, because another one has that of its place."""
        row = self._replace(message_id=content_id(self.stream, self.stream_seq, self.body), source_id=None)
        return row if self.source_id is None else row.apart()

    @property
    def shown(self) -> dict[str, Id | None]:
        """Its ids as people see them, by the names that facts give them."""
        return {
            "message_id": shown(self.message_id, self.originals, ID),
            "correlation_id": shown(self.correlation_id, self.originals, CORRELATION_ID),
            "causation_id": shown(self.causation_id, self.originals, CAUSATION_ID),
        }


class Inserted(NamedTuple):
    """What the inbox knows about a message: it is ``new``, or it was ``done`` (processed, a dead letter, let go).

    ``message_id`` is the key of the row, ``id`` that of the message. Where order is kept, a message may be
    ``parked`` with its key, or not ``runnable`` because an earlier message of its key comes first.
    """

    message_id: UUID
    new: bool
    done: bool
    parked: bool = False
    runnable: bool = True
    source_id: UUID | None = None

    @property
    def id(self) -> UUID:
        """The id by which its source and its subscription know it."""
        return self.source_id or self.message_id


class ClaimedMessage(NamedTuple):
    """An inbox row held under a claim token. ``attempts`` includes the attempt that follows.

    A rejected row is claimed only to store its dead letter. That is not an attempt.
    """

    token: UUID
    row: InboxRow
    attempts: int
    #: How often an operator has requeued the message. It distinguishes the message's dead letters.
    requeues: int = 0
    #: `time.monotonic` before the claim was requested. The lease does not end earlier than its length after this.
    since: float = math.inf
    #: When the message was stored in the inbox.
    received_at: datetime | None = None
    #: Whether it is the one that is tried while its handler is away (`relay.domain.circuit`).
    probe: bool = False


class InboxReceiver(Protocol):
    """PORT-047-002, receiving: store what was pulled. All methods raise DatabaseUnreachable."""

    async def ping(self) -> None:
        """Check that the database answers, before anything is fetched."""

    async def insert(self, rows: Sequence[InboxRow], *, lasting: bool = True) -> Sequence[Inserted]:
        """Insert a batch in one statement. What a subscription knows is never inserted twice (POL-047-003).

        Known is the same id in the same subscription. If the row of an id belongs to another subscription, that
        row stays as it is, and the message gets a row apart. A known row takes the reply subject, stream and
        sequence of the latest delivery, and keeps all else. A rejected message whose place had another body,
        or one that is archived, is inserted `InboxRow.anew`. The answers are in the order of the batch; an id that
        is twice in it has one. Raises MalformedMessage if a value cannot be stored; then nothing of the batch is.

        ``lasting`` False: a crash of the server may take the rows back until something later is committed, which
        lasts with all before it. So use it for what JetStream delivers again. An ordered inbox ignores it.
        """

    async def note_expiry(self, ends: Mapping[UUID, datetime | None], expires_in: timedelta | None = None) -> None:
        """Note until when messages are worth handling, by the keys of their rows: until the earlier of the times.

        ``ends``: the time that each names. ``expires_in``: so long after it occurred, or came.
        """

    async def due(self, subscription: str, limit: int, *, later: bool = False) -> int:
        """Count the rows that are handled or can be handled now, up to ``limit``.

        Rows that have failed do not count, nor those that wait behind one. With ``later`` all unfinished rows do.
        """


class InboxSettlement(Protocol):
    """PORT-047-002, settling: claim one message, and record its outcome. All methods raise DatabaseUnreachable.

    A claim is a lease on the database's clock, fenced by a token. It lasts until it is settled or taken by another
    worker. What is recorded about a lost claim changes nothing and returns False.
    """

    async def claim(
        self, message_id: UUID, lease: timedelta, max_attempts: int = UNLIMITED_ATTEMPTS
    ) -> ClaimedMessage | None:
        """Claim a row for ``lease`` and count the attempt. None if the row is not due, claimed or finished.

        If no attempts are left, the row is returned rejected: its last worker died before it could record that.
        If its time is over, it is rejected as `TooLate`.
        """

    async def renew(self, claim: ClaimedMessage, lease: timedelta) -> bool:
        """Extend the claim to ``lease`` from now. False when it was lost."""

    async def mark_all_processed(self, claims: Sequence[ClaimedMessage]) -> Sequence[ClaimedMessage]:
        """Set processed_at. Returns those whose claim was not lost: another worker has the others now."""

    async def record_error(self, claim: ClaimedMessage, disposition: Retry) -> bool:
        """Record the error, set next_attempt_at and release the claim. False when the claim was lost."""

    async def reject(self, claim: ClaimedMessage, disposition: DeadLetter) -> bool:
        """Record the verdict before the dead letter is published, so that the handler is not called again."""

    async def expire(self, claim: ClaimedMessage) -> bool:
        """Settle a message that a claim has found stale. False when the claim was lost."""

    async def mark_dead_lettered(self, claim: ClaimedMessage) -> bool:
        """Set dead_lettered_at after the dead letter is stored. False when the claim was lost."""

    async def release(self, claim: ClaimedMessage, delay: timedelta) -> bool:
        """Release a rejected row. Its dead letter is tried again after ``delay``."""


class InboxAudit(Protocol):
    """PORT-047-002, auditing: what waits, and what was lost on the way. All methods raise DatabaseUnreachable.

    They may be repeated, and run beside workers: nothing is claimed.
    """

    async def overdue(
        self,
        subscription: str,
        limit: int,
        waited: timedelta = timedelta(0),
        *,
        at_once: bool = False,
        failed: bool | None = None,
    ) -> Sequence[UUID]:
        """Ids that should be in the queue and are not. Marks them as enqueued now.

        ``waited``: how long the head of the queue has waited. ``at_once``: all that are due, also those that may
        be in the queue. ``failed``: only those that have failed, or only the others. While the handler is away,
        there are none.
        """

    def waiting(self, subscription: str, page: int, *, due: bool = False) -> AsyncIterator[Sequence[str]]:
        """Reply subjects of the unfinished rows that hold a place, one page at a time, for +WPI.

        ``due``: without rows in back-off.
        """

    async def missing(self, subscription: str, stream: str, after: int, upto: int) -> Sequence[int]:
        """The sequences of ``stream`` that the inbox does not hold, in order: after ``after``, up to ``upto``."""

    async def finished(
        self, subscription: str, stream: str, after: int, upto: int, *, on_receipt: bool = False
    ) -> Sequence[Finished]:
        """The rows in that range that are finished, parked or let go: their ack may be lost.

        ``on_receipt``: all rows. A row that was finished or received less than a second ago is left out: its ack
        may be on the way.
        """


class InboxWindow(Protocol):
    """PORT-047-002, the places of JetStream's window that messages hold."""

    async def let_go(
        self, subscription: str, keep: int, limit: int, hangs: timedelta | None = None
    ) -> Sequence[str]:
        """Mark messages that hold a place and wait, all but the latest ``keep``; returns their reply subjects.

        A message waits if it has failed, or if its turn comes only after one that has. With ``hangs``, one that
        runs for longer than that waits too. At most ``limit`` are marked at a time, each once. They are to be
        acknowledged: their rows are committed. `InboxReceiver.insert` reports a repeat of one as done. Raises
        DatabaseUnreachable.
        """


class InboxRepository(InboxReceiver, InboxSettlement, InboxAudit, InboxWindow, Protocol):
    """PORT-047-002 as a whole. An adapter provides all four; a caller asks for the one that it needs."""
