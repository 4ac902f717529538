"""StreamAuditor: what a stream holds, read without its payloads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import uuid4

import nats.errors
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from relay.adapters.jetstream.client import RelayClient
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.wire import Arrived, Place, read_headers, read_place
from relay.commands.reconcile import Stored, StreamState

_BATCH_MESSAGES: Final = 500
#: Statuses that mean: no more messages. Any other status means that the reading has failed.
_NO_MORE: Final = {"404", "408"}
#: How long the server may be silent within a batch, in seconds.
_SILENCE_TIMEOUT_S: Final = 5.0
#: The server removes the consumer of an audit that died after this time, in seconds.
_INACTIVE_THRESHOLD_S: Final = 30.0


class NatsStreamAuditor:
    """Reads ranges through a short-lived consumer that sends headers only.

    Needs permission to publish to ``$JS.API.STREAM.INFO``, ``CONSUMER.CREATE``, ``CONSUMER.DELETE`` and
    ``CONSUMER.MSG.NEXT`` of the stream.
    """

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection

    async def state(self, stream: str) -> StreamState | None:
        """See the port."""
        async with self._connection.asking(f"cannot ask for stream {stream}") as client:
            try:
                info = await client.jetstream().stream_info(stream)
            except nats.js.errors.NotFoundError:
                return None
        return StreamState(
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
                return await _scan(client, stream, first, last, filter_subject)
            except nats.js.errors.NotFoundError:
                return []


async def _scan(
    client: RelayClient, stream: str, first: int, last: int, filter_subject: str | None
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
        return await _read(client, f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", last)
    finally:
        # A restarted server has forgotten the consumer. A server that is away will remove it later.
        with suppress(nats.errors.Error, OSError):
            await js.delete_consumer(stream, name)


async def _read(client: RelayClient, subject: str, last: int) -> list[Stored]:
    inbox, arrived = client.new_inbox(), asyncio.Queue[Arrived]()
    subscription = await client.listen(inbox, lambda *message: arrived.put_nowait(Arrived._make(message)))
    request = json.dumps({"batch": _BATCH_MESSAGES, "no_wait": True}).encode()
    found: list[Stored] = []
    try:
        while True:
            await client.publish(subject, request, reply=inbox)
            for _ in range(_BATCH_MESSAGES):
                async with asyncio.timeout(_SILENCE_TIMEOUT_S):
                    message = await arrived.get()
                if (place := read_place(message.reply)) is None:
                    _check_end(message)
                    return found
                if place.stream_seq <= last:
                    found.append(_stored(message, place))
                if place.stream_seq >= last or place.pending == 0:
                    return found
    finally:
        await client.unlisten(subscription)


def _check_end(message: Arrived) -> None:
    """Raise unless the reading is complete. A caller would take the messages of an unread rest for lost."""
    status = read_headers(message.headers)
    if status.get("Status") not in _NO_MORE:
        raise nats.errors.Error(f"the reading was cut short: {status or 'no status'}")


def _stored(message: Arrived, place: Place) -> Stored:
    at = datetime.fromtimestamp(place.at / 1e9, UTC)
    return Stored.of(place.stream_seq, read_headers(message.headers), at, message.subject)
