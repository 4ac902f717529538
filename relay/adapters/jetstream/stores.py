"""Which streams may have stored a message, as the server says.

Any client may subscribe to the subject of an event and answer like a stream. So no answer counts by itself: what
it says must fit what the server knows. A PubAck that follows the one before it in its stream is believed, after
the first was found in the stream. All others are looked up: a repeat, a sequence out of order, the first one
again after a while, and each of a stream for which somebody else answers. An error counts if it must be true.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import nats.errors

from relay.adapters.jetstream.client import RelayClient, read_headers
from relay.domain.envelopes import MSG_ID
from relay.domain.policies import NoStream, OutcomeUnknown, Published, PublishOutcome, RowRejected
from relay.domain.routing import EXPECTED_STREAM
from relay.domain.topology import covers

#: How long an answer may take, in seconds. It must be shorter than a publisher waits for a PubAck.
_PATIENCE_S: Final = 0.5
#: What the server said of a stream counts for this time, in seconds.
_ASK_AGAIN_S: Final = 5.0
#: After this time a PubAck of each stream is looked up again, in seconds.
_LOOK_AGAIN_S: Final = 30.0
#: For this time each PubAck of a stream is looked up after somebody else answered for it, in seconds.
_DISTRUST_S: Final = 60.0
#: By so much a stream may grow between two PubAcks that we get. A larger step is looked up.
_MAX_STEP: Final = 100_000
#: How many pairs of stream and subject, and how many streams, are remembered.
_MAX_PAIRS: Final = 10_000
_MAX_STREAMS: Final = 1_000
_NOT_FOUND: Final = 404
_NO_SUCH_STREAM: Final = 10059
_API: Final = "io.nats.jetstream.api.v1."
_FOREIGN: Final = "something that is no stream answers on {}; end it, or forbid it that subject"


class _Stream(NamedTuple):
    """What the server says of a stream. One that does not exist has no subjects."""

    subjects: tuple[str, ...] = ()
    max_msg_size: int = -1
    last_seq: int = -1

    def takes(self, subject: str) -> bool:
        return any(covers(pattern, subject) for pattern in self.subjects)


class Stores:
    """The streams that one connection has heard of."""

    def __init__(self, client: RelayClient) -> None:
        self._client = client
        self._sure: set[tuple[str, str]] = set()
        self._until = 0.0
        #: The sequence of the last PubAck of each stream.
        self._last: dict[str, int] = {}
        self._first: dict[str, asyncio.Lock] = {}
        #: Until when each PubAck of a stream is looked up.
        self._distrusted: dict[str, float] = {}
        self._asked: dict[str, tuple[float, asyncio.Future[Any]]] = {}

    def sure(self, ack: Published, subject: str) -> bool:
        """Whether a PubAck can be believed at once. This must be cheap: it is asked for every message."""
        stream, seq, duplicate, _ = ack
        if duplicate or (stream, subject) not in self._sure:
            return False
        if not 0 < seq - self._last.get(stream, seq) <= _MAX_STEP:
            return False
        if self._distrusted and time.monotonic() < self._distrusted.get(stream, 0.0):
            return False
        self._last[stream] = seq
        return True

    def distrust(self, stream: str) -> None:
        """Somebody else than the server answers for this stream: look each of its PubAcks up for a while."""
        _room(self._distrusted, _MAX_STREAMS)
        self._distrusted[stream] = time.monotonic() + _DISTRUST_S

    def forget(self) -> None:
        """Look the next PubAck of each stream up, if the last look was long ago."""
        now = time.monotonic()
        if now > self._until:
            self._until = now + _LOOK_AGAIN_S
            self._sure.clear()
            self._last.clear()

    async def confirm(self, ack: Published, subject: str, headers: Mapping[str, str]) -> bool:
        """Ask whether a stream has a message.

        Where the server does not tell us, a stream that takes the subject is believed.
        """
        state = await self._look(ack.stream)
        # The first PubAck of a stream is looked up. Others wait for that and follow it.
        if not ack.duplicate and ack.stream not in self._last:
            _room(self._first, _MAX_STREAMS)
            async with self._first.setdefault(ack.stream, asyncio.Lock()):
                if ack.stream not in self._last:
                    return await self._confirmed(state, ack, subject, headers)
        if state is not None and state.takes(subject):
            self._note(ack.stream, subject)
            if self.sure(ack, subject):
                return True
        return await self._confirmed(state, ack, subject, headers)

    async def _confirmed(
        self, state: _Stream | None, ack: Published, subject: str, headers: Mapping[str, str]
    ) -> bool:
        held = await self.has(ack, headers)
        if held is None:
            held = state is None or state.takes(subject)
        if not held:
            return False
        _room(self._last, _MAX_STREAMS)
        self._note(ack.stream, subject)
        # A stream that was made again counts from one again. A repeat has an old sequence.
        if not ack.duplicate:
            self._last[ack.stream] = ack.seq
        return True

    def _note(self, stream: str, subject: str) -> None:
        _room(self._sure, _MAX_PAIRS)
        self._sure.add((stream, subject))

    async def judged(
        self, answer: PublishOutcome | None, subject: str, headers: Mapping[str, str], size: int
    ) -> tuple[PublishOutcome, bool]:
        """What an answer that is no PubAck is worth, and whether the server says so, too.

        What it does not confirm ends no event, spends no attempt and delays for a moment only. ``size``: bytes of
        the message.
        """
        if isinstance(answer, RowRejected) and answer.final:
            return answer, True
        expected = headers.get(EXPECTED_STREAM)
        state = await (self._taker(subject) if expected is None else self._look(expected))
        if state is not None and not state.takes(subject) and (expected, subject) not in self._sure:
            mismatch = NoStream.mismatch(subject, expected or "?")
            missing = mismatch if answer == mismatch else NoStream.missing(subject)
            return (missing if isinstance(answer, NoStream) else NoStream(_FOREIGN.format(subject))), True
        too_large = state is not None and 0 < state.max_msg_size < size
        if isinstance(answer, OutcomeUnknown) or (isinstance(answer, RowRejected) and too_large):
            return answer, too_large
        text = answer.error if isinstance(answer, NoStream | RowRejected) else _FOREIGN.format(subject)
        return NoStream(text, sure=False), False

    async def has(self, ack: Published, headers: Mapping[str, str]) -> bool | None:
        """Whether a stream has the message of a PubAck, or had one there. None: the server does not say."""
        body = json.dumps({"seq": ack.seq}).encode()
        answer = await self._request(f"STREAM.MSG.GET.{ack.stream}", body, "stream_msg_get_response")
        match answer:
            case {"message": {"hdrs": str(headers_there)}}:
                return _id_in(headers_there) == headers.get(MSG_ID)
            case {"message": _}:
                return MSG_ID not in headers
            case {"error": {"err_code": code}} if code == _NO_SUCH_STREAM:
                return False
            case {"error": {"code": code}} if code == _NOT_FOUND:
                # It may have been taken or replaced meanwhile.
                state = await self._ask(ack.stream)
                return state is None or (state != _Stream() and ack.seq <= state.last_seq)
            case _:
                return None

    # --- what the server says ---

    async def _look(self, stream: str) -> _Stream | None:
        """A stream, as it was a moment ago. None: the server does not say."""
        found: _Stream | None = await self._recent(stream, lambda: self._ask(stream))
        return found

    async def _taker(self, subject: str) -> _Stream | None:
        """The stream that takes a subject; None if the server does not say."""
        found: _Stream | None = await self._recent(f" {subject}", lambda: self._find(subject))
        return found

    async def _recent(self, key: str, ask: Callable[[], Any]) -> Any:
        now = time.monotonic()
        at, asked = self._asked.get(key, (0.0, None))
        if asked is None or (asked.done() and now > at + _ASK_AGAIN_S):
            _room(self._asked, _MAX_STREAMS)
            asked = asyncio.ensure_future(ask())
            self._asked[key] = now, asked
        return await asyncio.shield(asked)

    async def _ask(self, stream: str) -> _Stream | None:
        match await self._request(f"STREAM.INFO.{stream}", b"", "stream_info_response"):
            case {"config": {"max_msg_size": int(most), **config}, "state": {"last_seq": int(last)}}:
                subjects = config.get("subjects")
                return _Stream(tuple(map(str, subjects)) if isinstance(subjects, list) else (), most, last)
            case {"error": {"code": code}} if code == _NOT_FOUND:
                return _Stream()
            case _:
                return None

    async def _find(self, subject: str) -> _Stream | None:
        body = json.dumps({"subject": subject}).encode()
        match await self._request("STREAM.NAMES", body, "stream_names_response"):
            case {"streams": [str(name), *_]}:
                return await self._look(name)
            case {"streams": _}:
                return _Stream()
            case _:
                return None

    async def _request(self, subject: str, body: bytes, kind: str) -> Any:
        """The answer of JetStream's API. What a foreign client answers has another form."""
        heard: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def hear(_subject: bytes, _reply: bytes, data: bytes, _headers: bytes | None) -> None:
            try:
                answer = json.loads(data)
            except (ValueError, RecursionError):
                return
            if isinstance(answer, dict) and answer.get("type") == _API + kind and not heard.done():
                heard.set_result(answer)

        inbox = self._client.new_inbox()
        try:
            subscription = await self._client.listen(inbox, hear)
            try:
                await self._client.publish(f"$JS.API.{subject}", body, reply=inbox)
                return await asyncio.wait_for(heard, _PATIENCE_S)
            finally:
                await self._client.unlisten(subscription)
        except (nats.errors.Error, OSError, TimeoutError):
            return None


def _id_in(headers: str) -> str | None:
    try:
        return read_headers(base64.b64decode(headers)).get(MSG_ID)
    except ValueError:
        return None


def _room(memory: set[Any] | dict[str, Any], most: int) -> None:
    if len(memory) >= most:
        memory.clear()
