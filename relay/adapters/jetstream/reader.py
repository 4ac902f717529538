"""Single messages of a stream, for those that never arrived by delivery."""

from __future__ import annotations

from collections.abc import Mapping
from email.header import decode_header
from typing import Any
from uuid import UUID

import nats.errors
import nats.js.errors

from relay.adapters.jetstream.auditor import NatsStreamAuditor
from relay.adapters.jetstream.connection import NatsConnection
from relay.ports import Delivery


class StreamReader:
    """Reads the messages of one durable's stream by sequence, ready to be accepted and acknowledged.

    The reply subject is made up: the server finds what is acknowledged by the stream sequence in it.
    """

    def __init__(self, connection: NatsConnection, *, stream: str, durable: str, filter_subject: str) -> None:
        self._connection = connection
        self._stream, self._durable, self._filter = stream, durable, filter_subject

    async def next(self, seq: int) -> Delivery | None:
        """The consumer's first message at ``seq`` or after it, or None. Raises BrokerUnreachable."""
        client = await self._connection.client()
        try:
            message = await client.jetstream().get_msg(self._stream, seq, subject=self._filter, next=True)
        except nats.js.errors.NotFoundError:
            return None
        except (nats.errors.Error, OSError) as error:
            raise self._connection.failure("cannot read the stream", error) from error
        found = message.seq or seq
        return Delivery(
            subject=message.subject or "",
            reply=f"$JS.ACK.{self._stream}.{self._durable}.1.{found}.{found}.0.0",
            headers={name: _text(value) for name, value in (message.headers or {}).items()},
            body=message.data or b"",
            stream=self._stream,
            stream_seq=found,
        )

    async def ids(self, first: int, last: int) -> Mapping[int, UUID | None]:
        """Which event is at which place, payloads left out. Raises BrokerUnreachable."""
        stored = await NatsStreamAuditor(self._connection).stored(self._stream, first, last, self._filter)
        return {message.seq: message.event_id for message in stored}


def _text(value: Any) -> str:
    """A header's text. nats-py reads a stored message as e-mail and leaves what is not ASCII undecoded."""
    if isinstance(value, str):
        return value
    return b"".join(part for part, _ in decode_header(value)).decode("utf-8", "replace")
