"""Reads what a stream holds: ranges without their payloads, and single messages whose delivery never arrived."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import uuid4

import nats.errors
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from relay.adapters.jetstream.client import Arrived, Place, RelayClient, read_headers, read_place
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.topology import find_stream
from relay.commands.adopt import Held
from relay.commands.reconcile import AuditedStream, Stored
from relay.domain.errors import BrokerUnreachable
from relay.domain.reading import read_subject
from relay.ports import Delivery, HeldMessage

_BATCH_MESSAGES: Final = 500
#: Statuses that mean: no more messages. Any other status means that the reading has failed.
_NO_MORE: Final = {"404", "408"}
#: How long the server may be silent within a batch, in seconds.
_SILENCE_TIMEOUT_S: Final = 5.0
#: The server removes the consumer of an audit that died after this time, in seconds.
_INACTIVE_THRESHOLD_S: Final = 30.0
#: How long the server may take to find a message, in seconds.
_TIMEOUT_S: Final = 5.0
_NOT_FOUND: Final = 404
_NO_TEXT: Final = "\ufffd"
#: Messages so far apart are read by two consumers: what is between them would be read for nothing.
_FAR: Final = 50

Item = TypeVar("Item")


class NatsStreamAuditor:
    """Reads ranges through a short-lived consumer that sends headers only.

    Needs permission to publish to ``$JS.API.STREAM.INFO``, ``CONSUMER.CREATE``, ``CONSUMER.DELETE`` and
    ``CONSUMER.MSG.NEXT`` of the stream.
    """

    def __init__(self, connection: NatsConnection, *, batch: int = _BATCH_MESSAGES) -> None:
        """``batch``: how many messages one request asks for."""
        self._connection, self._batch = connection, batch

    async def state(self, stream: str) -> AuditedStream | None:
        """See the port."""
        async with self._connection.asking(f"cannot ask for stream {stream}") as client:
            info = await find_stream(client.jetstream(), stream)
        if info is None:
            return None
        return AuditedStream(
            first_seq=info.state.first_seq,
            last_seq=info.state.last_seq,
            created=info.created,
            max_age=timedelta(seconds=info.config.max_age) if info.config.max_age else None,
            duplicate_window=timedelta(seconds=info.config.duplicate_window or 0),
        )

    async def stored(
        self, stream: str, first: int, last: int, filter_subject: str | None = None
    ) -> Sequence[Stored]:
        """See the port."""
        async with self._connection.asking(f"cannot read stream {stream}") as client:
            return await self._scan(client, stream, first, last, _stored, filter_subject)

    async def held(self, stream: str, first: int, last: int, filter_subject: str) -> Sequence[Held]:
        """The messages of a range, with their bodies. Raises BrokerUnreachable."""
        async with self._connection.asking(f"cannot read stream {stream}") as client:
            return await self._scan(client, stream, first, last, _held, filter_subject)

    async def messages(self, stream: str, seqs: Sequence[int]) -> Sequence[Held]:
        """See the port `MessageReader`. Reads ranges, without what is far between them."""
        wanted, found = set(seqs), []
        async with self._connection.asking(f"cannot read stream {stream}") as client:
            for first, last in _near(sorted(wanted)):
                read = await self._scan(client, stream, first, last, _held)
                found += [message for message in read if message.seq in wanted]
        return found

    async def delete(self, stream: str, seqs: Sequence[int]) -> None:
        """See the port `MessageReader`. Needs permission to publish to ``$JS.API.STREAM.MSG.DELETE``."""
        async with self._connection.asking(f"cannot remove messages of stream {stream}") as client:
            for seq in seqs:
                with suppress(nats.js.errors.NotFoundError):
                    await client.jetstream().delete_msg(stream, seq)

    async def _scan(
        self,
        client: RelayClient,
        stream: str,
        first: int,
        last: int,
        make: Callable[[Arrived, Place], Item],
        filter_subject: str | None = None,
    ) -> list[Item]:
        try:
            return await self._consume(client, stream, first, last, make, filter_subject)
        except nats.js.errors.NotFoundError:
            return []

    async def _consume(
        self,
        client: RelayClient,
        stream: str,
        first: int,
        last: int,
        make: Callable[[Arrived, Place], Item],
        filter_subject: str | None,
    ) -> list[Item]:
        js = client.jetstream()
        name = f"relay_audit_{uuid4().hex}"
        config = ConsumerConfig(
            name=name,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=max(first, 1),
            ack_policy=AckPolicy.NONE,
            filter_subject=filter_subject,
            headers_only=make is _stored,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_INACTIVE_THRESHOLD_S,
        )
        await js.add_consumer(stream, config)
        try:
            subject, batch = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", min(self._batch, last - first + 1)
            return await _read(client, subject, last, batch, make)
        finally:
            # A restarted server has forgotten the consumer. A server that is away will remove it later.
            with suppress(nats.errors.Error, OSError):
                await js.delete_consumer(stream, name)


async def _read(
    client: RelayClient, subject: str, last: int, batch: int, make: Callable[[Arrived, Place], Item]
) -> list[Item]:
    inbox, arrived = client.new_inbox(), asyncio.Queue[Arrived]()
    subscription = await client.listen(inbox, lambda *message: arrived.put_nowait(Arrived._make(message)))
    request = json.dumps({"batch": batch, "no_wait": True}).encode()
    stored: list[Item] = []
    try:
        while True:
            await client.publish(subject, request, reply=inbox)
            for _ in range(batch):
                async with asyncio.timeout(_SILENCE_TIMEOUT_S):
                    message = await arrived.get()
                if (place := read_place(message.reply)) is None:
                    _check_end(message)
                    return stored
                if place.stream_seq <= last:
                    stored.append(make(message, place))
                if place.stream_seq >= last or place.pending == 0:
                    return stored
    finally:
        await client.unlisten(subscription)


def _check_end(message: Arrived) -> None:
    """Raise unless the reading is complete. Otherwise a caller would count messages that were not read as lost."""
    status = read_headers(message.headers)
    if status.get("Status") not in _NO_MORE:
        raise nats.errors.Error(f"the reading was cut short: {status or 'no status'}")


def _stored(message: Arrived, place: Place) -> Stored:
    at = datetime.fromtimestamp(place.at / 1e9, UTC)
    return Stored.of(place.stream_seq, read_headers(message.headers), at, message.subject)


def _held(message: Arrived, place: Place) -> Held:
    at = datetime.fromtimestamp(place.at / 1e9, UTC)
    subject, _ = read_subject(message.subject)
    return Held(place.stream_seq, subject, read_headers(message.headers), message.body, at)


def _near(seqs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Sequences as ranges: those that are near each other together."""
    first = last = None
    for seq in seqs:
        if first is None or last is None or seq > last + _FAR:
            if first is not None and last is not None:
                yield first, last
            first = seq
        last = seq
    if first is not None and last is not None:
        yield first, last


# --- single messages ---


async def _get(connection: NatsConnection, stream: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """One message as the server's API gives it, or None. Raises BrokerUnreachable."""
    subject = f"$JS.API.STREAM.MSG.GET.{stream}"
    async with connection.asking("cannot read the stream") as client:
        answer = await client.request(subject, json.dumps(request).encode(), timeout=_TIMEOUT_S)
    content: dict[str, Any] = json.loads(answer.data)
    if (message := content.get("message")) is None and content.get("error", {}).get("code") != _NOT_FOUND:
        raise BrokerUnreachable(f"cannot read the stream: {content.get('error')}")
    return message


class NatsStreamLookup:
    """Looks up single messages. Needs permission to publish to ``$JS.API.STREAM.MSG.GET`` of the stream."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection

    async def find(self, stream: str, seq: int) -> HeldMessage | None:
        """See the port."""
        message = await _get(self._connection, stream, {"seq": seq})
        return None if message is None else HeldMessage(message["subject"], b64decode(message.get("data", "")))


class StreamReader:
    """Reads the messages of one durable's stream by sequence, ready to be accepted and acknowledged.

    The reply subject is built here. The server finds the acknowledged message by the stream sequence in it.
    """

    def __init__(self, connection: NatsConnection, *, stream: str, durable: str, filter_subject: str) -> None:
        self._connection = connection
        self._stream, self._durable, self._filter = stream, durable, filter_subject

    async def next(self, seq: int) -> Delivery | None:
        """The consumer's first message at ``seq`` or after it, or None. Raises BrokerUnreachable."""
        message = await _get(self._connection, self._stream, {"seq": seq, "next_by_subj": self._filter})
        if message is None:
            return None
        number = message["seq"]
        subject, legible = read_subject(await self._subject(message["subject"], number))
        return Delivery(
            subject=subject,
            reply=self.reply(number),
            headers=read_headers(b64decode(message.get("hdrs", ""))),
            body=b64decode(message.get("data", "")),
            stream=self._stream,
            stream_seq=number,
            legible=legible,
            stored_at=datetime.fromisoformat(message["time"]),
        )

    def reply(self, seq: int) -> str:
        """Where the acknowledgement of a message goes."""
        return f"$JS.ACK.{self._stream}.{self._durable}.1.{seq}.{seq}.0.0"

    async def deliveries(self, first: int, last: int) -> Sequence[Delivery]:
        """The consumer's messages of a range, in order. Raises BrokerUnreachable."""
        found = await NatsStreamAuditor(self._connection).held(self._stream, first, last, self._filter)
        return [
            Delivery(it.subject, self.reply(it.seq), it.headers, it.body, self._stream, it.seq, stored_at=it.at)
            for it in found
        ]

    async def _subject(self, text: str, seq: int) -> bytes:
        """The subject as it was sent. In the server's JSON `_NO_TEXT` replaces every byte that is not text."""
        if _NO_TEXT not in text:
            return text.encode()
        stored = await NatsStreamAuditor(self._connection).stored(self._stream, seq, seq, self._filter)
        return stored[0].subject if stored else text.encode()

    async def stored(self, first: int, last: int) -> Mapping[int, Stored]:
        """What each sequence holds, without its payload. Raises BrokerUnreachable."""
        stored = await NatsStreamAuditor(self._connection).stored(self._stream, first, last, self._filter)
        return {message.seq: message for message in stored}
