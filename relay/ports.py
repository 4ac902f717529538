"""Ports (SDS-047 §7): the interfaces that the core needs. Each docstring is the contract.

The spec's single-row methods are batch methods here, because one statement for a batch makes the relay fast.
The names and meanings are the spec's.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from uuid import UUID

from relay.domain.actor import Actor
from relay.domain.identity import CAUSATION_ID, CORRELATION_ID, ID, NO_ORIGINALS, Id, Originals, shown
from relay.domain.incidents import Letter, RecordedIncident
from relay.domain.model import Finished, HandlerResult
from relay.domain.policies import UNLIMITED_ATTEMPTS, DeadLetter, Published, PublishOutcome, Retry
from relay.domain.schedule import ClaimedRun, RunState, WaitingRun


class OutboxRow(NamedTuple):
    """A claimed event. Values that the publisher only passes on are text.

    ``payload`` is None if it is larger than any broker accepts.
    """

    id: str
    event_type: str
    event_version: int
    payload: str | None
    occurred_at: str
    correlation_id: str | None
    causation_id: str | None
    partition_key: str
    topic: str | None
    headers: str
    publish_attempts: int
    generation: int
    #: The texts of ids that are no UUIDs, as JSON.
    originals: str | None = None
    #: The stream that must store the event; None leaves it to the route.
    stream: str | None = None
    #: Its place among the events of its key: a later one has a larger number.
    seq: int = 0


@dataclass(frozen=True, slots=True)
class PublishFailure:
    """What to record when an event cannot be published. ``delay`` None means that the event is dead.

    ``counts``: False if only the first such failure counts as an attempt, to mark the event as failed.
    """

    id: str
    error: str
    delay: timedelta | None
    counts: bool = True


class ClaimedBatch(Protocol):
    """Rows held by one open transaction. Leaving the claim commits it; an exception rolls it back."""

    @property
    def rows(self) -> Sequence[OutboxRow]:
        """The claimed events, in the order in which they must be published."""

    @property
    def busy(self) -> Collection[int]:
        """The lanes that had due events; -1 stands for the events without order."""

    @property
    def more(self) -> bool:
        """Whether more events may be due: a lane has used its whole share, or the batch has reached its bytes."""

    @property
    def begun(self) -> float:
        """When the claim began, on the monotonic clock."""

    async def mark_published(self, acks: Mapping[str, Published]) -> Mapping[str, datetime | str]:
        """Record the PubAck of each id in one statement.

        Returns for each id its ``published_at``, or why the row cannot be updated. Such a row does not stop the
        others.
        """

    async def increment_attempts(self, failures: Sequence[PublishFailure]) -> None:
        """Count an attempt for each id, record the error, and set the back-off or mark the event dead.

        A row that cannot be updated here either is not claimed again for an hour.
        """


class OutboxRepository(Protocol):
    """PORT-047-001. The claim transaction is the lease.

    Rows are locked until the claim ends. A killed process frees them at once. A paused process loses them
    after ``idle_in_transaction_session_timeout`` (5 s), and then its commit fails.
    """

    def find_unpublished(
        self, lanes: Sequence[int], limit: int, max_bytes: int
    ) -> AbstractAsyncContextManager[ClaimedBatch]:
        """Claim up to ``limit`` due rows of the lanes. Each key keeps its order; each lane has the same share.

        The batch ends with the row that brings it to ``max_bytes`` of text. No more is read from the database.
        The claim locks the lanes that are free, so no other claim holds rows of the same keys.
        Raises DatabaseUnreachable.
        """

    def find_one(self, event_id: UUID) -> AbstractAsyncContextManager[ClaimedBatch]:
        """Claim one event, even during its back-off. Waits for its lane. Empty if no such event is unpublished."""


class Message(NamedTuple):
    """A message ready to send. Messages with the same non-empty ``key`` are sent one after the other."""

    id: str
    subject: str
    body: bytes
    headers: Mapping[str, str]
    key: str = ""


class JetStreamPublisher(Protocol):
    """PORT-047-003."""

    max_payload: int

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        """Publish one message and wait for its PubAck. It is safe to repeat with the same Nats-Msg-Id."""

    async def publish_all(
        self, messages: Sequence[Message], begun: float | None = None
    ) -> Mapping[str, PublishOutcome]:
        """Publish a batch as a pipeline. Within a key, each message waits for the PubAck of the one before it.

        ``begun``: when the claim of the batch began, on the monotonic clock; None means now. After the claim's
        time is over nothing more is sent. Returns an outcome for every message. Raises BrokerUnreachable only
        when nothing was sent.
        """


class Delivery(NamedTuple):
    """A message as JetStream delivered it. Its acknowledgement goes to the subject ``reply``.

    ``legible``: whether ``subject`` is the subject that was sent. A subject that is not text is escaped, and no
    handler gets the message.
    """

    subject: str
    reply: str
    headers: Mapping[str, str]
    body: bytes
    stream: str
    stream_seq: int
    #: The number of the delivery. None for a message that was read from the stream.
    consumer_seq: int | None = None
    legible: bool = True
    #: When the stream stored it.
    stored_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """The position of a durable consumer, in sequences of its stream.

    Everything up to ``ack_floor`` is acknowledged. Everything up to ``delivered`` was delivered at least once.
    ``pending`` messages between the two wait for their acknowledgement. ``consumer_seq`` counts deliveries.
    ``undelivered`` messages after ``delivered`` are still to come. Messages before ``first``, and those that were
    stored before ``since``, are not for this consumer: it starts later.
    """

    ack_floor: int
    delivered: int
    pending: int
    consumer_seq: int = 0
    undelivered: int = 0
    first: int = 1
    since: datetime | None = None


class JetStreamConsumer(Protocol):
    """PORT-047-004. Any process may acknowledge: it needs only the reply subject."""

    #: How often the connection was lost. After a loss, the numbers of deliveries may start again.
    losses: int

    async def state(self) -> ConsumerState:
        """Ask the server for the position. Raises BrokerUnreachable; ConsumerMissing if there is no consumer."""

    async def fetch(self, batch: int, wait: timedelta) -> Sequence[Delivery]:
        """Wait up to ``wait`` for messages and return at most ``batch``. Raises BrokerUnreachable."""

    async def finish(self) -> Sequence[Delivery]:
        """End fetching, and return what an open request still delivers. Call it after the last fetch."""

    async def ack(self, replies: Sequence[str]) -> None:
        """Acknowledge, without an answer. A lost ack means a redelivery, which the inbox recognises."""

    async def nak(self, replies: Sequence[str], delay: timedelta) -> None:
        """Ask for redelivery after ``delay``."""

    async def in_progress(self, replies: Sequence[str]) -> None:
        """Restart the ack wait (+WPI)."""

    async def terminate(self, replies: Sequence[str], reason: str) -> None:
        """Stop redelivery for good (+TERM)."""


class InboxRow(NamedTuple):
    """A received message, before or after it is stored in the inbox. An unreadable message has no event type."""

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

    @property
    def shown(self) -> dict[str, Id | None]:
        """Its ids as people see them, by the names that facts give them."""
        return {
            "message_id": shown(self.message_id, self.originals, ID),
            "correlation_id": shown(self.correlation_id, self.originals, CORRELATION_ID),
            "causation_id": shown(self.causation_id, self.originals, CAUSATION_ID),
        }


class Inserted(NamedTuple):
    """What the inbox knows about a message: it is ``new``, or it was ``done`` (processed or a dead letter).

    Where order is kept, a message may be ``parked`` with its key, or not ``runnable`` because an earlier message
    of its key comes first.
    """

    message_id: UUID
    new: bool
    done: bool
    parked: bool = False
    runnable: bool = True


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


class InboxReceiver(Protocol):
    """PORT-047-002, receiving: store what was pulled. All methods raise DatabaseUnreachable."""

    async def ping(self) -> None:
        """Check that the database answers, before anything is fetched."""

    async def insert(self, rows: Sequence[InboxRow]) -> Sequence[Inserted]:
        """Insert a batch in one statement. A known id is reported and never inserted twice (POL-047-003).

        A known row takes the reply subject, stream and sequence of the latest delivery, and keeps all else. An id
        that is twice in the batch has one answer. Raises MalformedMessage if a value cannot be stored; then
        nothing of the batch is stored.
        """

    async def due(self, subscription: str, limit: int, *, later: bool = False) -> int:
        """Count the rows that are handled or can be handled now, up to ``limit``, without rows in back-off.

        With ``later``, those in back-off count too, and those that wait for their turn.
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
        """

    async def renew(self, claim: ClaimedMessage, lease: timedelta) -> bool:
        """Extend the claim to ``lease`` from now. False when it was lost."""

    async def mark_all_processed(self, claims: Sequence[ClaimedMessage]) -> Sequence[ClaimedMessage]:
        """Set processed_at. Returns those whose claim was not lost: another worker has the others now."""

    async def record_error(self, claim: ClaimedMessage, disposition: Retry) -> bool:
        """Record the error, set next_attempt_at and release the claim. False when the claim was lost."""

    async def reject(self, claim: ClaimedMessage, disposition: DeadLetter) -> bool:
        """Record the verdict before the dead letter is published, so that the handler is not called again."""

    async def mark_dead_lettered(self, claim: ClaimedMessage) -> bool:
        """Set dead_lettered_at after the dead letter is stored. False when the claim was lost."""

    async def release(self, claim: ClaimedMessage, delay: timedelta) -> bool:
        """Release a rejected row. Its dead letter is tried again after ``delay``."""


class InboxAudit(Protocol):
    """PORT-047-002, auditing: what waits, and what was lost on the way. All methods raise DatabaseUnreachable.

    They may be repeated, and run beside workers: nothing is claimed.
    """

    async def overdue(self, subscription: str, limit: int, waited: timedelta = timedelta(0)) -> Sequence[UUID]:
        """Ids that should be in the queue and are not. Marks them as enqueued now.

        ``waited``: how long the head of the queue has waited.
        """

    def waiting(self, subscription: str, page: int, *, due: bool = False) -> AsyncIterator[Sequence[str]]:
        """Reply subjects of all unfinished rows, one page at a time, for +WPI.

        ``due``: without rows in back-off.
        """

    async def missing(self, subscription: str, stream: str, after: int, upto: int) -> Sequence[int]:
        """The sequences of ``stream`` that the inbox does not hold, in order: after ``after``, up to ``upto``."""

    async def finished(
        self, subscription: str, stream: str, after: int, upto: int, *, on_receipt: bool = False
    ) -> Sequence[Finished]:
        """The finished and parked rows in that range, whose ack may be lost. With ``on_receipt``: all rows.

        A row that was finished or received less than a second ago is left out: its ack may be on the way.
        """


class InboxRepository(InboxReceiver, InboxSettlement, InboxAudit, Protocol):
    """PORT-047-002 as a whole. An adapter provides all three; a caller asks for the one that it needs."""


@dataclass(frozen=True, slots=True)
class HandlerRequest:
    """One call of a handler (SDS-047 §12). ``body`` is the JSON request, ready to send.

    ``message_id`` is the key of the inbox; ``originals`` has the texts of ids that are no UUIDs.
    ``idempotency_key`` is different for each message, and the same for its copies. ``token`` is the token of the
    claim. A handler in this process may use it to settle the row itself, in the transaction of its own writes.
    ``traceparent``: the span of this call, if the message belongs to a trace.
    """

    message_id: UUID
    subject: str
    event_type: str
    event_version: int
    correlation_id: UUID | None
    attempt: int
    body: bytes
    headers: Mapping[str, str]
    token: UUID
    originals: Originals = field(default_factory=dict)
    idempotency_key: str = ""
    actor: Actor | None = None
    traceparent: str | None = None


class EventHandler(Protocol):
    """PORT-047-005. It may be called again with the same message id. It must answer within its time-out."""

    async def handle(self, request: HandlerRequest) -> HandlerResult:
        """Call the handler. Never raises because of an answer of the handler.

        For a ``settled`` answer, ``processed_at`` is already committed, fenced by the request's token.
        """


class IncidentRecords(Protocol):
    """Where dead letters are kept as incidents."""

    async def record(self, letters: Sequence[Letter]) -> Sequence[RecordedIncident]:
        """Record dead letters; returns those that were new. Raises DatabaseUnreachable.

        It may be repeated: the id and the occurrence of its message identify a letter. A letter without its
        original takes it from the inbox, if the inbox holds it.
        """


class Runs(Protocol):
    """The runs of cron jobs. All methods raise DatabaseUnreachable.

    A claim is a lease of `CLAIM` on the database's clock, fenced by a token.
    """

    async def claim(self, run: WaitingRun, token: UUID, who: str) -> ClaimedRun | None:
        """Claim a run and count the attempt. None if there is nothing to do.

        Only one run of a job can be claimed at a time. A run whose lease is over is free again, but still the only
        one of its job.
        """

    async def renew(self, run: ClaimedRun) -> bool:
        """Renew the claim. False if it was lost."""

    async def settle(
        self, run: ClaimedRun, state: RunState, error: str | None = None, delay: timedelta = timedelta()
    ) -> None:
        """Record how an attempt ended. It may be repeated. It does nothing if another worker has the claim."""
