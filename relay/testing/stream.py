"""A stream of JetStream in memory, its publisher and a durable consumer."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from relay.domain.envelopes import MSG_ID
from relay.domain.errors import BrokerUnreachable
from relay.domain.limits import DEFAULT_MAX_PAYLOAD_BYTES
from relay.domain.ordering import chains
from relay.domain.policies import NoStream, NotSent, Published, PublishOutcome, RowRejected
from relay.domain.routing import EXPECTED_STREAM
from relay.ports import ConsumerState, Delivery, Message
from relay.testing.clock import Clock

#: For how long a repeated ``Nats-Msg-Id`` is dropped.
_WINDOW: Final = timedelta(minutes=2)
#: After this time of a claim nothing is sent any more, in seconds.
_CLOSING: Final = 3.0
_SPACE: Final = re.compile(r"\s")


class StreamMessage(NamedTuple):
    """A message that the stream holds."""

    seq: int
    subject: str
    body: bytes
    headers: Mapping[str, str]
    stored_at: datetime


class MemoryStream:
    """Holds the messages of ``subjects``, which may hold ``*`` and end with ``>``."""

    def __init__(self, name: str, *subjects: str, clock: Clock | None = None) -> None:
        self.name = name
        self.clock = clock or Clock()
        self.messages: list[StreamMessage] = []
        self._subjects = [_pattern(subject) for subject in subjects]

    def takes(self, subject: str) -> bool:
        """Whether the stream stores messages of this subject."""
        return any(it.fullmatch(subject) for it in self._subjects)

    def store(self, subject: str, body: bytes, headers: Mapping[str, str]) -> Published:
        """Store a message, or recognise a repeat by its ``Nats-Msg-Id``."""
        now, id = self.clock.now, headers.get(MSG_ID)
        for stored in self.messages:
            if id is not None and stored.headers.get(MSG_ID) == id and now - stored.stored_at < _WINDOW:
                return Published(self.name, stored.seq, duplicate=True)
        self.messages.append(StreamMessage(len(self.messages) + 1, subject, body, dict(headers), now))
        return Published(self.name, len(self.messages))


class MemoryPublisher:
    """Publishes to streams. ``answers``: the broker's answer for a message, by its id, instead of storing it."""

    def __init__(self, *streams: MemoryStream, max_payload: int = DEFAULT_MAX_PAYLOAD_BYTES) -> None:
        self.max_payload = max_payload
        self.answers: dict[str, PublishOutcome] = {}
        self.down = False
        self.takes_ttl = True
        self._streams = streams

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        message = Message(headers.get(MSG_ID, ""), subject, payload, headers)
        return (await self.publish_all([message]))[message.id]

    async def publish_all(
        self, messages: Sequence[Message], begun: float | None = None
    ) -> Mapping[str, PublishOutcome]:
        if self.down:
            raise BrokerUnreachable("the broker in memory is down")
        if begun is not None and time.monotonic() > begun + _CLOSING:
            raise BrokerUnreachable("the time of the claim was up before anything was sent")
        outcomes: dict[str, PublishOutcome] = dict.fromkeys((it.id for it in messages), NotSent())
        for chain in chains(messages, lambda it: it.key):
            for message in chain:
                outcomes[message.id] = self.answers.get(message.id) or self._publish(message)
                if not isinstance(outcomes[message.id], Published):
                    break
        return outcomes

    def _publish(self, message: Message) -> PublishOutcome:
        lines = "".join([*message.headers, *message.headers.values()])
        if not message.subject or _SPACE.search(message.subject) or "\n" in lines or "\r" in lines:
            return RowRejected("a subject or a header would break its line")
        if len(message.body) + sum(len(text) for text in lines) > self.max_payload:
            return RowRejected(f"over the limit of {self.max_payload} bytes")
        for stream in self._streams:
            if stream.takes(message.subject):
                expected = message.headers.get(EXPECTED_STREAM, stream.name)
                if expected != stream.name:
                    return NoStream.mismatch(message.subject, expected)
                return stream.store(message.subject, message.body, message.headers)
        return NoStream.missing(message.subject)


class MemoryConsumer:
    """A durable consumer.

    A message that is not acknowledged within ``ack_wait`` comes again, by the stream's clock.
    """

    def __init__(
        self, stream: MemoryStream, durable: str, *, filter_subject: str = ">", ack_wait: timedelta
    ) -> None:
        self.losses = 0
        self.down = False
        self._stream, self._durable, self._ack_wait = stream, durable, ack_wait
        self._filter = _pattern(filter_subject)
        self._delivered = self._consumer_seq = 0
        #: For each message without an acknowledgement, when it is delivered again.
        self._waiting: dict[int, datetime] = {}

    async def state(self) -> ConsumerState:
        due = self._due
        ack_floor = min(due) - 1 if due else self._delivered
        undelivered = [it for it in self._stream.messages if it.seq > self._delivered and self._fits(it)]
        return ConsumerState(ack_floor, self._delivered, len(due), self._consumer_seq, len(undelivered))

    async def fetch(self, batch: int, wait: timedelta) -> Sequence[Delivery]:
        end = time.monotonic() + wait.total_seconds()
        while not (messages := self._next(batch)) and time.monotonic() < end:  # noqa: ASYNC110  (a moved clock tells nobody)
            await asyncio.sleep(0.001)
        return [self._deliver(message) for message in messages]

    async def finish(self) -> Sequence[Delivery]:
        return []

    async def ack(self, replies: Sequence[str]) -> None:
        for seq in map(_seq, replies):
            self._due.pop(seq, None)

    async def nak(self, replies: Sequence[str], delay: timedelta) -> None:
        self._wait(replies, delay)

    async def in_progress(self, replies: Sequence[str]) -> None:
        self._wait(replies, self._ack_wait)

    async def terminate(self, replies: Sequence[str], reason: str) -> None:
        await self.ack(replies)

    @property
    def _due(self) -> dict[int, datetime]:
        if self.down:
            raise BrokerUnreachable("the broker in memory is down")
        return self._waiting

    def _next(self, batch: int) -> list[StreamMessage]:
        again = [seq for seq, due in self._due.items() if due <= self._stream.clock.now]
        candidates = [it for it in self._stream.messages if it.seq > self._delivered or it.seq in again]
        return [it for it in candidates if self._fits(it)][:batch]

    def _fits(self, message: StreamMessage) -> bool:
        return bool(self._filter.fullmatch(message.subject))

    def _deliver(self, message: StreamMessage) -> Delivery:
        self._delivered, self._consumer_seq = max(self._delivered, message.seq), self._consumer_seq + 1
        self._due[message.seq] = self._stream.clock.now + self._ack_wait
        return Delivery(
            message.subject,
            f"$JS.ACK.{self._stream.name}.{self._durable}.1.{message.seq}.{self._consumer_seq}.0.0",
            message.headers,
            message.body,
            self._stream.name,
            message.seq,
            self._consumer_seq,
            stored_at=message.stored_at,
        )

    def _wait(self, replies: Sequence[str], delay: timedelta) -> None:
        for seq in self._due.keys() & map(_seq, replies):
            self._due[seq] = self._stream.clock.now + delay


def _pattern(subject: str) -> re.Pattern[str]:
    """Return the pattern of a subject with wildcards."""
    return re.compile(re.escape(subject).replace(r"\*", "[^.]+").replace(">", ".+"))


def _seq(reply: str) -> int:
    """Return the message's sequence in a reply subject."""
    return int(reply.split(".")[5])
