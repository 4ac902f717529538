"""PORT-047-003 and -004: the stream of events, written and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from relay.domain.policies import PublishOutcome


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

    @property
    def takes_ttl(self) -> bool:
        """Whether messages may say when their stream removes them (`relay.domain.expiry.TTL`)."""

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


class HeldMessage(NamedTuple):
    """A message as a stream holds it."""

    subject: str
    body: bytes


class StreamLookup(Protocol):
    """Reads single messages of any stream."""

    async def find(self, stream: str, seq: int) -> HeldMessage | None:
        """The message at ``seq``, or None. Raises BrokerUnreachable; BrokerRefused if it may not be read."""


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
    stored before ``since``, are not for this consumer: it starts later. ``window``: no more than so many are
    pending; None if there is no limit.
    """

    ack_floor: int
    delivered: int
    pending: int
    consumer_seq: int = 0
    undelivered: int = 0
    first: int = 1
    since: datetime | None = None
    window: int | None = None


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
