"""Reads single messages of a stream, for messages whose delivery never arrived."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from relay.adapters.jetstream.auditor import NatsStreamAuditor
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.wire import read_headers
from relay.commands.reconcile import Stored
from relay.domain.errors import BrokerUnreachable
from relay.domain.reading import read_subject
from relay.ports import Delivery

#: How long the server may take to find a message, in seconds.
_TIMEOUT_S: Final = 5.0
_NOT_FOUND: Final = 404
_NO_TEXT: Final = "\ufffd"


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
        found = message["seq"]
        subject, legible = read_subject(await self._subject(message["subject"], found))
        return Delivery(
            subject=subject,
            reply=f"$JS.ACK.{self._stream}.{self._durable}.1.{found}.{found}.0.0",
            headers=read_headers(b64decode(message.get("hdrs", ""))),
            body=b64decode(message.get("data", "")),
            stream=self._stream,
            stream_seq=found,
            legible=legible,
            stored_at=datetime.fromisoformat(message["time"]),
        )

    async def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        subject = f"$JS.API.STREAM.MSG.GET.{self._stream}"
        async with self._connection.asking("cannot read the stream") as client:
            answer = await client.request(subject, json.dumps(request).encode(), timeout=_TIMEOUT_S)
        found: dict[str, Any] = json.loads(answer.data)
        return found

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
