"""Which streams may have stored a message, as the server says.

Any client may subscribe to the subject of an event and answer like a stream. So the first PubAck of each stream is
checked. After that, a check is a look into a set.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Mapping
from typing import Any, Final

import nats.errors

from relay.adapters.jetstream.client import RelayClient, read_headers
from relay.domain.envelopes import MSG_ID
from relay.domain.topology import covers

#: How long an answer may take, in seconds. It must be shorter than a publisher waits for a PubAck.
_PATIENCE_S: Final = 0.5
#: A stream that does not take a subject is not asked again for this time, in seconds.
_ASK_AGAIN_S: Final = 5.0
#: How many pairs of stream and subject, and how many streams, are remembered.
_MAX_PAIRS: Final = 10_000
_MAX_STREAMS: Final = 1_000
_NOT_FOUND: Final = 404


class Stores:
    """The streams that one connection has heard of."""

    def __init__(self, client: RelayClient) -> None:
        self._client = client
        self._sure: set[tuple[str, str]] = set()
        self._streams: dict[str, tuple[float, asyncio.Future[tuple[str, ...] | None]]] = {}

    def sure(self, stream: str, subject: str) -> bool:
        """Whether a stream is known to store a subject."""
        return (stream, subject) in self._sure

    async def confirm(self, stream: str, seq: int, subject: str, headers: Mapping[str, str]) -> bool:
        """Ask whether a stream has a message, or may have it because it takes its subject.

        A stream that the server does not tell us about is believed.
        """
        patterns = await self._patterns(stream)
        taken = patterns is None or any(covers(pattern, subject) for pattern in patterns)
        # The account may map subjects to others, so the message itself decides.
        if not taken and not (patterns and await self._has(stream, seq, headers.get(MSG_ID))):
            return False
        if len(self._sure) >= _MAX_PAIRS:
            self._sure.clear()
        self._sure.add((stream, subject))
        return True

    async def _patterns(self, stream: str) -> tuple[str, ...] | None:
        """The subjects of a stream; none if it does not exist. None: the server does not say."""
        now = time.monotonic()
        at, asked = self._streams.get(stream, (0.0, None))
        if asked is None or (asked.done() and now > at + _ASK_AGAIN_S):
            if len(self._streams) >= _MAX_STREAMS:
                self._streams.clear()
            asked = asyncio.ensure_future(self._ask(stream))
            self._streams[stream] = now, asked
        return await asyncio.shield(asked)

    async def _ask(self, stream: str) -> tuple[str, ...] | None:
        answer = await self._request(f"$JS.API.STREAM.INFO.{stream}", b"")
        match answer:
            case {"config": {"subjects": [*subjects]}}:
                return tuple(map(str, subjects))
            case {"error": {"code": code}} if code == _NOT_FOUND:
                return ()
            case {"config": _}:
                return ()
            case _:
                return None

    async def _has(self, stream: str, seq: int, id: str | None) -> bool:
        """Whether a stream has a message of this id at this place."""
        answer = await self._request(f"$JS.API.STREAM.MSG.GET.{stream}", json.dumps({"seq": seq}).encode())
        try:
            raw = base64.b64decode(answer["message"]["hdrs"])
        except (KeyError, TypeError, ValueError):
            return False
        return id is not None and read_headers(raw).get(MSG_ID) == id

    async def _request(self, subject: str, body: bytes) -> Any:
        try:
            return json.loads((await self._client.request(subject, body, timeout=_PATIENCE_S)).data)
        except (nats.errors.Error, OSError, ValueError, TimeoutError):
            return None
