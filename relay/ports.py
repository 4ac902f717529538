"""Ports (SDS-047 §7): what the core needs from the world. Each docstring is the contract.

The spec's single-row methods are batch methods here, because one statement for a batch is what makes
the relay fast; the names and meanings are the spec's.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from uuid import UUID

from relay.domain.model import Finished, HandlerResult
from relay.domain.policies import MANY, Ack, DeadLetter, Published, PublishOutcome, Retry


class OutboxRow(NamedTuple):
    """A claimed event, as text wherever the publisher only passes it on.

    ``payload`` is None where it is larger than any broker takes.
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


@dataclass(frozen=True, slots=True)
class PublishFailure:
    """What to record of an event that could not be published. ``delay`` None means dead."""

    id: str
    error: str
    delay: timedelta | None


class ClaimedBatch(Protocol):
    """Rows held by one open transaction. Leaving the claim commits it; an exception rolls it back."""

    @property
    def rows(self) -> Sequence[OutboxRow]:
        """The claimed events, in the order they are to leave."""

    @property
    def lanes(self) -> Sequence[int]:
        """The lanes this claim holds; empty when another publisher has them all."""

    @property
    def busy(self) -> Collection[int]:
        """The lanes in which something was due; -1 stands for the events without order."""

    @property
    def more(self) -> bool:
        """Whether more may be due than was claimed: a lane has given its whole share, or the batch its bytes."""

    @property
    def begun(self) -> float:
        """When the time of the claim began, on the monotonic clock."""

    async def mark_published(self, acks: Mapping[str, Published]) -> Mapping[str, str]:
        """Record the PubAck of each id in one statement; returns the ids whose rows refuse that, and why.

        One such row leaves the others settled.
        """

    async def increment_attempts(self, failures: Sequence[PublishFailure]) -> None:
        """Spend an attempt on each id, note the error, set back-off or death.

        A row that refuses that, too, is not claimed again for an hour.
        """


class OutboxRepository(Protocol):
    """PORT-047-001. The claim transaction is the lease.

    Rows are locked until the claim ends; a killed process frees them at once, a paused one loses them
    after ``idle_in_transaction_session_timeout`` (5 s) and then fails to commit.
    """

    def find_unpublished(
        self, lanes: Sequence[int], limit: int, max_bytes: int
    ) -> AbstractAsyncContextManager[ClaimedBatch]:
        """Claim up to ``limit`` due rows of the lanes, in the order of each key, the same share from every lane.

        The batch ends with the row that brings it to ``max_bytes`` of text; no more is read from the database.
        Takes the locks of those lanes that are free, so no other claim holds rows of the same keys.
        Raises DatabaseUnreachable.
        """

    def find_one(self, event_id: UUID) -> AbstractAsyncContextManager[ClaimedBatch]:
        """Claim one event whatever its back-off, waiting for its lane; empty when there is none unpublished."""


class Message(NamedTuple):
    """A message ready for the wire. Messages of one non-empty ``key`` are sent one after the other."""

    id: str
    subject: str
    body: bytes
    headers: Mapping[str, str]
    key: str = ""


class JetStreamPublisher(Protocol):
    """PORT-047-003."""

    max_payload: int

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        """Publish one message and wait for its PubAck. Repeatable with the same Nats-Msg-Id."""

    async def publish_all(
        self, messages: Sequence[Message], begun: float | None = None
    ) -> Mapping[str, PublishOutcome]:
        """Publish a batch, pipelined; within a key each message waits for the PubAck before it.

        ``begun``: when the claim behind it began, on the monotonic clock; None: now. Nothing leaves once its time
        is up. Returns an outcome for every message. Raises BrokerUnreachable only when nothing was sent.
        """


class Delivery(NamedTuple):
    """A message as JetStream handed it out; ``reply`` is where its acknowledgement goes.

    ``legible``: whether the subject is what was sent. One that is no text is escaped and for no handler.
    """

    subject: str
    reply: str
    headers: Mapping[str, str]
    body: bytes
    stream: str
    stream_seq: int
    #: The number of the delivery, None for a message read from the stream.
    consumer_seq: int | None = None
    legible: bool = True
    #: When the stream has stored it.
    stored_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """How far a durable consumer has come, in sequences of its stream.

    Everything up to ``floor`` is acknowledged, everything up to ``delivered`` was delivered at least once,
    and ``pending`` messages in between await their acknowledgement. ``consumer_seq`` counts deliveries.
    """

    floor: int
    delivered: int
    pending: int
    consumer_seq: int = 0


class JetStreamConsumer(Protocol):
    """PORT-047-004. Any process may acknowledge: the reply subject is all it takes."""

    #: How often the connection was lost; what is fetched after a loss may be numbered anew.
    losses: int

    async def state(self) -> ConsumerState:
        """Raises BrokerUnreachable."""

    async def fetch(self, batch: int, wait: timedelta) -> Sequence[Delivery]:
        """Wait up to ``wait`` for messages, return at most ``batch``. Raises BrokerUnreachable."""

    async def finish(self) -> Sequence[Delivery]:
        """End fetching: what an open request still delivers. Call it when no further fetch follows."""

    async def ack(self, replies: Sequence[str]) -> None:
        """Acknowledge. Fire and forget: a lost ack means a redelivery, which the inbox recognises."""

    async def nak(self, replies: Sequence[str], delay: timedelta) -> None:
        """Ask for redelivery after ``delay``."""

    async def in_progress(self, replies: Sequence[str]) -> None:
        """Restart the ack wait (+WPI)."""

    async def terminate(self, replies: Sequence[str], reason: str) -> None:
        """Stop redelivery for good (+TERM)."""


class InboxRow(NamedTuple):
    """A received message on its way into the inbox, or out of it. An unreadable one has no event type."""

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
    #: Why it is dead on arrival: it could not be read.
    condemned: DeadLetter | None = None
    #: The key in whose order it runs, None where no order is kept, and the number of its delivery.
    order_key: str | None = None
    consumer_seq: int | None = None


class Inserted(NamedTuple):
    """What the inbox knew of a message: ``new``, or ``done`` (processed or dead-lettered) earlier.

    ``parked`` with its key, or not ``runnable`` before another of its key: both only where order is kept.
    """

    message_id: UUID
    new: bool
    done: bool
    parked: bool = False
    runnable: bool = True


class ClaimedMessage(NamedTuple):
    """An inbox row held under a claim token; ``attempts`` includes the one about to be made.

    A condemned row is claimed only to store its dead letter, and that is no attempt.
    """

    token: UUID
    row: InboxRow
    attempts: int
    #: How often an operator has put the message back; tells its dead letters apart.
    requeues: int = 0
    #: What `time.monotonic` said before the claim was asked for: the lease is no shorter than from then.
    since: float = math.inf


class InboxRepository(Protocol):
    """PORT-047-002. Claims are leases on the database's clock, fenced by a token."""

    async def insert(self, rows: Sequence[InboxRow]) -> Sequence[Inserted]:
        """Insert a batch in one statement; a known id is reported, never inserted twice (POL-047-003)."""

    async def claim(self, message_id: UUID, lease: timedelta, max_attempts: int = MANY) -> ClaimedMessage | None:
        """Take a due, unclaimed, unfinished row for ``lease`` and count the attempt; None if it is not.

        A row whose attempts are spent comes back condemned: none of its workers lived to say so.
        """

    async def renew(self, claim: ClaimedMessage, lease: timedelta) -> bool:
        """Extend the claim to ``lease`` from now. False when it was lost."""

    async def mark_processed(self, claim: ClaimedMessage, disposition: Ack) -> bool:
        """Set processed_at. False when the claim was lost: somebody else owns the row now."""

    async def record_error(self, claim: ClaimedMessage, disposition: Retry) -> bool:
        """Note the error, set next_attempt_at, release the claim. False when the claim was lost."""

    async def condemn(self, claim: ClaimedMessage, disposition: DeadLetter) -> bool:
        """Record the verdict before the dead letter is published, so that the handler is not asked again."""

    async def mark_dead_lettered(self, claim: ClaimedMessage) -> bool:
        """Set dead_lettered_at once the dead letter is stored. False when the claim was lost."""

    async def release(self, claim: ClaimedMessage, delay: timedelta) -> bool:
        """Give a condemned row back, to be routed again after ``delay``."""

    async def overdue(self, subscription: str, limit: int, waited: timedelta = timedelta(0)) -> Sequence[UUID]:
        """Ids that should be in a queue whose head has ``waited``, and are not; marks them as enqueued now."""

    def waiting(self, subscription: str, page: int) -> AsyncIterator[Sequence[str]]:
        """Reply subjects of all unfinished rows, a page at a time, for +WPI."""

    async def missing(self, subscription: str, stream: str, after: int, upto: int) -> Sequence[int]:
        """The sequences of ``stream`` after ``after`` up to ``upto`` that are not in the inbox, in order."""

    async def finished(
        self, subscription: str, stream: str, after: int, upto: int, *, on_receipt: bool = False
    ) -> Sequence[Finished]:
        """The finished and parked rows in that range, with ``on_receipt`` all: their ack may be lost."""

    async def due(self, subscription: str, limit: int) -> int:
        """How many rows could be handled now, or are; counts up to ``limit``. Back-off is no part of it."""

    async def ping(self) -> None:
        """Raises DatabaseUnreachable."""


@dataclass(frozen=True, slots=True)
class HandlerRequest:
    """One call of a handler (SDS-047 §12). ``body`` is the JSON request, ready to send.

    ``token`` is that of the claim: with it a handler in this process may settle the row itself, in the
    transaction of its own writes.
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


class EventHandler(Protocol):
    """PORT-047-005. May be called again with the same message id; must answer within its time-out."""

    async def handle(self, request: HandlerRequest) -> HandlerResult:
        """Never raises for an answer of the handler, whatever it is.

        An answer that is ``settled`` has committed ``processed_at``, fenced by the request's token.
        """
