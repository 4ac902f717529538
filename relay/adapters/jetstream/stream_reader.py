"""Reads what a stream holds: ranges without their payloads, and single messages whose delivery never arrived."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import nats.errors
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from relay.adapters.jetstream.client import Arrived, Place, RelayClient, read_headers, read_place
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.topology import find_stream
from relay.commands.reconcile import AuditedStream, Stored
from relay.domain.errors import BrokerUnreachable
from relay.domain.reading import read_subject
from relay.ports import Delivery

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
            try:
                return await self._scan(client, stream, first, last, filter_subject)
            except nats.js.errors.NotFoundError:
                return []

    async def _scan(
        self, client: RelayClient, stream: str, first: int, last: int, filter_subject: str | None
    ) -> list[Stored]:
        js = client.jetstream()
        name = f"relay_audit_{uuid4().hex}"
        config = ConsumerConfig(
            name=name,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=max(first, 1),
            ack_policy=AckPolicy.NONE,
            filter_subject=filter_subject,
            headers_only=True,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_INACTIVE_THRESHOLD_S,
        )
        await js.add_consumer(stream, config)
        try:
            return await _read(client, f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", last, self._batch)
        finally:
            # A restarted server has forgotten the consumer. A server that is away will remove it later.
            with suppress(nats.errors.Error, OSError):
                await js.delete_consumer(stream, name)


async def _read(client: RelayClient, subject: str, last: int, batch: int) -> list[Stored]:
    inbox, arrived = client.new_inbox(), asyncio.Queue[Arrived]()
    subscription = await client.listen(inbox, lambda *message: arrived.put_nowait(Arrived._make(message)))
    request = json.dumps({"batch": batch, "no_wait": True}).encode()
    stored: list[Stored] = []
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
                    stored.append(_stored(message, place))
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


# --- single messages ---


class StreamReader:
    """Reads the messages of one durable's stream by sequence, ready to be accepted and acknowledged.

    The reply subject is built here. The server finds the acknowledged message by the stream sequence in it.
    """

    def __init__(self, connection: NatsConnection, *, stream: str, durable: str, filter_subject: str) -> None:
        self._connection = connection
        self._stream, self._durable, self._filter = stream, durable, filter_subject

    async def next(self, seq: int) -> Delivery | None:
        """The consumer's first message at ``seq`` or after it, or None. Raises BrokerUnreachable."""
        answer = await self._ask({"seq": seq, "next_by_subj": self._filter})
        if (message := answer.get("message")) is None:
            if answer.get("error", {}).get("code") == _NOT_FOUND:
                return None
            raise BrokerUnreachable(f"cannot read the stream: {answer.get('error')}")
        number = message["seq"]
        subject, legible = read_subject(await self._subject(message["subject"], number))
        return Delivery(
            subject=subject,
            reply=f"$JS.ACK.{self._stream}.{self._durable}.1.{number}.{number}.0.0",
            headers=read_headers(b64decode(message.get("hdrs", ""))),
            body=b64decode(message.get("data", "")),
            stream=self._stream,
            stream_seq=number,
            legible=legible,
            stored_at=datetime.fromisoformat(message["time"]),
        )

    async def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        subject = f"$JS.API.STREAM.MSG.GET.{self._stream}"
        async with self._connection.asking("cannot read the stream") as client:
            answer = await client.request(subject, json.dumps(request).encode(), timeout=_TIMEOUT_S)
        content: dict[str, Any] = json.loads(answer.data)
        return content

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
