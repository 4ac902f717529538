"""NatsJetStreamConsumer: PORT-047-004, a pull consumer on an existing durable.

Pull requests are written by hand. nats-py's ``fetch`` waits for a full batch. Here a fetch returns as soon as the
first message is there, with all that has arrived by then.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import nats.errors

from relay.adapters.jetstream.client import Arrived, RelayClient, read_delivery, read_headers
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.refusals import Refusal
from relay.adapters.jetstream.topology import find_consumer, starts_at
from relay.domain.errors import BrokerRefused, BrokerUnreachable, ConsumerMissing
from relay.ports import ConsumerState, Delivery

#: A pull request is sent again if it has no answer for this time after its expiry, in seconds.
_SILENCE_TIMEOUT_S: Final = 2.0
#: Statuses that end a pull request without an error: no messages, and time-out.
_QUIET: Final = {"404", "408"}
#: The server's text, with status 409, when its next message is larger than the rest of the request's bytes.
_FULL: Final = "Message Size Exceeds MaxBytes"
#: A cluster says so behind a whole batch, and may say it before the last of its messages are here.
_COMPLETED: Final = "Batch Completed"
#: How many bytes a request asks for by default.
_MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
#: A text that can be used as a subject in a command without adding another command.
_ANSWERABLE: Final = re.compile(r"[^\s\x00]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLimits:
    """How much is asked for, and answered, at a time.

    ``subjects_bytes``: for subject and reply subject; the server counts them in a request, and not in
    ``max_payload``. ``batch_replies``: how many replies are written at a time. ``unsent_bytes``: how many bytes
    may wait to be sent.
    """

    subjects_bytes: int = 8_192
    batch_replies: int = 1_000
    unsent_bytes: int = 1_000_000


class _RequestEndedError(BrokerUnreachable):
    """The server has ended a pull request, for example because it knows no such consumer."""


class NatsJetStreamConsumer:
    """Fetches from one durable consumer. At most one pull request is outstanding.

    ``max_bytes``: how much a request asks for, and so how much of it can be in memory. A request never asks for
    less than the largest message that the server takes.
    """

    def __init__(
        self,
        connection: NatsConnection,
        *,
        stream: str,
        durable: str,
        max_bytes: int = _MAX_REQUEST_BYTES,
        limits: ConsumerLimits = ConsumerLimits(),
    ) -> None:
        self._connection = connection
        self._max_bytes, self._limits = max_bytes, limits
        self._stream, self._durable = stream, durable
        self._request_subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
        self._client: RelayClient | None = None
        self._arrived: asyncio.Queue[Arrived | None] = asyncio.Queue()
        self._inbox = ""
        self._request = 0
        self._asked = self._missing = 0
        self._too_large = False
        self._patience = _SILENCE_TIMEOUT_S
        self.losses = 0
        self._refused: Refusal | None = None
        connection.on_down.append(self._on_down)
        connection.on_refused.append(self._on_refused)

    async def fetch(self, batch: int, wait: timedelta) -> Sequence[Delivery]:
        """Wait up to ``wait`` for messages, return at most ``batch``; see the port."""
        try:
            await self._ready()
            if self._missing <= 0:
                await self._ask(batch, wait)
            first = await self._next(self._patience)
            if first is None and self._too_large:
                await self._ask(batch, wait)
                first = await self._next(self._patience)
        except (nats.errors.Error, OSError) as error:
            raise BrokerUnreachable(f"cannot fetch: {str(error) or type(error).__name__}") from error
        except _RequestEndedError:
            await self.state()  # says whether the consumer is missing, and what to do
            raise
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise BrokerRefused(str(refused))
        if first is None:
            return []
        return [first, *self._rest(batch - 1)]

    async def ack(self, replies: Sequence[str]) -> None:
        await self._reply(replies, b"+ACK")

    async def nak(self, replies: Sequence[str], delay: timedelta) -> None:
        await self._reply(replies, b'-NAK {"delay":%d}' % int(delay.total_seconds() * 1e9))

    async def in_progress(self, replies: Sequence[str]) -> None:
        await self._reply(replies, b"+WPI")

    async def terminate(self, replies: Sequence[str], reason: str) -> None:
        text = reason.encode("ascii", "replace")[:200].replace(b"\r", b" ").replace(b"\n", b" ")
        await self._reply(replies, b"+TERM " + text)

    async def state(self) -> ConsumerState:
        """See the port."""
        async with self._connection.asking(f"cannot ask for {self._durable}") as client:
            info = await find_consumer(client.jetstream(), self._stream, self._durable)
        if info is None:
            missing = f"the stream {self._stream} has no consumer {self._durable}"
            raise ConsumerMissing(missing, hint="run: relay streams ensure")
        ack_floor = info.ack_floor.stream_seq if info.ack_floor else 0
        delivered = info.delivered.stream_seq if info.delivered else 0
        number = info.delivered.consumer_seq if info.delivered else 0
        first, since = starts_at(info.config)
        most = info.config.max_ack_pending or 0
        window = most if most > 0 else None
        return ConsumerState(
            ack_floor, delivered, info.num_ack_pending or 0, number, info.num_pending or 0, first, since, window
        )

    async def finish(self) -> Sequence[Delivery]:
        """Wait for the open pull request to end, and return the messages that it still delivers.

        Otherwise messages that arrive after the job would be redelivered only when the ack wait is over.
        """
        rest: list[Delivery] = []
        while self._client is not None and (self._missing > 0 or not self._arrived.empty()):
            try:
                delivery = await self._next(self._patience)
            except BrokerUnreachable:
                continue
            if delivery is not None:
                rest.append(delivery)
        return rest

    async def _reply(self, replies: Sequence[str], body: bytes) -> None:
        client = await self._connection.client()
        try:
            batch = self._limits.batch_replies
            for first in range(0, len(replies), batch):
                client.write(_replies(replies[first : first + batch], body))
                if client.pending_data_size > self._limits.unsent_bytes:
                    await client.written()
        except (nats.errors.Error, OSError) as error:
            raise BrokerUnreachable(f"cannot acknowledge: {error}") from error

    async def _ready(self) -> None:
        client = await self._connection.client()
        if client is not self._client:
            self._inbox = client.new_inbox()
            await client.listen(f"{self._inbox}.*", self._on_message)
            self._client = client
            self._missing = 0

    async def _ask(self, batch: int, wait: timedelta) -> None:
        assert self._client is not None
        self._request += 1
        self._patience = wait.total_seconds() + _SILENCE_TIMEOUT_S
        options = {"batch": batch, "expires": int(wait.total_seconds() * 1e9)}
        if self._too_large:
            # When this message was stored, the server took larger ones. Ask for one message, whatever its size.
            options["batch"] = 1
        else:
            options["max_bytes"] = max(self._max_bytes, self._client.max_payload + self._limits.subjects_bytes)
        self._asked = self._missing = options["batch"]
        self._too_large = False
        await self._client.publish(
            self._request_subject, json.dumps(options).encode(), reply=f"{self._inbox}.{self._request}"
        )

    def _rest(self, limit: int) -> list[Delivery]:
        """The other messages that have arrived. An error after them is ignored: the next request gets it too."""
        rest: list[Delivery] = []
        with suppress(BrokerUnreachable):
            while len(rest) < limit and not self._arrived.empty():
                more = self._read(self._arrived.get_nowait())
                if more is not None:
                    rest.append(more)
        return rest

    def _on_message(self, *message: bytes | None) -> None:
        self._arrived.put_nowait(Arrived._make(message))

    async def _next(self, patience: float) -> Delivery | None:
        """The next message. None when the request ended or had no answer."""
        try:
            async with asyncio.timeout(patience):
                while self._missing > 0 or not self._arrived.empty():
                    delivery = self._read(await self._arrived.get())
                    if delivery is not None:
                        return delivery
        except TimeoutError:
            self._missing = 0
        return None

    def _read(self, message: Arrived | None) -> Delivery | None:
        if message is None:
            return None
        if not message.reply:
            self._end_request(message)
            return None
        self._missing -= 1
        return read_delivery(message)

    def _end_request(self, message: Arrived) -> None:
        headers = read_headers(message.headers)
        status, request = headers.get("Status"), f"{self._inbox}.{self._request}"
        if status in (None, "100") or message.subject != request.encode():
            return
        if headers.get("Description") == _COMPLETED:
            return
        full = headers.get("Description") == _FULL
        self._too_large = full and self._missing == self._asked
        self._missing = 0
        if status not in _QUIET and not full:
            raise _RequestEndedError(f"the consumer answered {status} {headers.get('Description', '')}".rstrip())

    def _on_down(self) -> None:
        self._missing = 0
        self.losses += 1
        # Wakes a waiting fetch.
        self._arrived.put_nowait(None)

    def _on_refused(self, refusal: Refusal) -> None:
        """End the request: it gets no answer if its subject, or the subject of its answers, is refused."""
        if self._missing > 0 and (refusal.inbox or refusal.subject == self._request_subject):
            self._refused, self._missing = refusal, 0
            self._arrived.put_nowait(None)


def _replies(subjects: Sequence[str], body: bytes) -> bytes:
    """The commands that answer deliveries.

    A row that an operator wrote may have no valid subject: it is left out.
    """
    end = b" %d\r\n%b\r\n" % (len(body), body)
    return b"".join([b"PUB " + it.encode() + end for it in subjects if it and _ANSWERABLE.fullmatch(it)])
