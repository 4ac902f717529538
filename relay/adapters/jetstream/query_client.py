"""RemoteQueries: asks the queries of other services, by request and reply over NATS."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

import nats.errors
from nats.aio.msg import Msg
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from relay.adapters.jetstream.client import RelayClient
from relay.adapters.jetstream.connection import NatsConnection
from relay.bus.context import RequestContext
from relay.bus.errors import AnsweredByStream, InvalidAnswer, NoResponder, QueryFailed, QueryTimeout
from relay.bus.result import NOTHING, Maybe, Some
from relay.domain import querying
from relay.domain.disclosure import validation
from relay.domain.envelopes.event import CAUSATION, CORRELATION
from relay.domain.errors import BrokerRefused, BrokerUnreachable, InvalidPayload, MalformedMessage
from relay.domain.identity import check_id
from relay.domain.limits import WIRE_RESERVE_BYTES, check_size, encode_payload
from relay.domain.quoting import quoted
from relay.domain.reading import read_json
from relay.domain.subject import check_subject
from relay.domain.traceparent import TRACEPARENT, Trace

Answer = TypeVar("Answer")

#: When to check for the first time whether a worker is present, and the longest pause between checks, in seconds.
_FIRST_LOOK_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 1.0
#: How long an answer may still arrive when no worker is present any more, and how long a check may take, in
#: seconds.
_GRACE_S: Final = 0.05
_LOOK_TIMEOUT_S: Final = 0.5
#: The caller's time-out ends a request, not this one.
_NO_LIMIT_S: Final = 86_400.0


class RemoteQueries:
    """Asks other services. One connection serves any number of queries at once.

        async with RemoteQueries("nats://localhost:4222") as queries:
            match await queries.ask("cases.queries.case.find", {"id": id}, answer=CaseView, timeout=2):
                case Some(view): ...
                case Nothing(): ...

    ``nats``: servers, or a connection of the same event loop. ``timeout``: in seconds, the default of `ask`.
    ``presence``: whether jetrelay's workers answer, which say that they are present. With False and a stream that
    takes the subject, only the time-out shows that nobody answers. ``options`` go to ``nats.connect``.
    """

    def __init__(
        self, nats: str | NatsConnection, *, timeout: float = 5.0, presence: bool = True, **options: Any
    ) -> None:
        self._own = isinstance(nats, str)
        self._connection = nats if isinstance(nats, NatsConnection) else NatsConnection(nats, **options)
        self._connection.on_down.append(self._on_down)
        self._timeout = timeout
        self._presence = presence
        self._open: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection, unless it was given."""
        with suppress(ValueError):
            self._connection.on_down.remove(self._on_down)
        if self._own:
            await self._connection.close()

    # ruff: noqa: ASYNC109 - a name that callers know
    @overload
    async def ask(self, subject: str, payload: Any = None, *, timeout: float | None = None) -> Maybe[Any]: ...
    @overload
    async def ask(
        self, subject: str, payload: Any = None, *, answer: type[Answer], timeout: float | None = None
    ) -> Maybe[Answer]: ...
    async def ask(
        self, subject: str, payload: Any = None, *, answer: Any = None, timeout: float | None = None
    ) -> Maybe[Any]:
        """Ask, and wait for the answer. The query carries ids, actor and trace of the request context.

        ``payload``: a mapping or a pydantic model. ``answer``: a type that pydantic validates. Raises NoResponder
        at once when nobody answers, QueryTimeout after ``timeout`` seconds, QueryFailed with the code that came
        back, AnsweredByStream, InvalidAnswer, BrokerUnreachable, and InvalidSubject, InvalidPayload, InvalidKey
        (an id of the request context) or PayloadTooLarge for what cannot be sent.
        """
        check_subject(subject, "subject")
        body, seconds = _encode({} if payload is None else payload), self._timeout if timeout is None else timeout
        headers, deadline = _headers(seconds), asyncio.get_running_loop().time() + seconds
        client = await self._connection.client(within=seconds)
        check_size(len(body) + len(subject) + WIRE_RESERVE_BYTES, client.max_payload)
        try:
            async with asyncio.timeout_at(deadline) as limit:
                reply = await self._exchange(client, subject, body, headers)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            if (refusal := client.refusals.latest()) is not None:
                raise BrokerRefused(f"cannot ask {subject}: {refusal}") from None
            if limit.expired():
                raise QueryTimeout(
                    f"{subject}: no answer within {seconds:g} s", remote=querying.TOO_SLOW
                ) from None
            raise BrokerUnreachable(f"cannot ask {subject}: {str(error) or type(error).__name__}") from error
        return _read(subject, reply, answer)

    async def _exchange(self, client: RelayClient, subject: str, body: bytes, headers: dict[str, str]) -> Msg:
        """Send a query and wait for the reply. Meanwhile check, from time to time, whether a worker is present."""
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        request = asyncio.ensure_future(client.request(subject, body, timeout=_NO_LIMIT_S, headers=headers))
        self._open.add(lost)
        pause = _FIRST_LOOK_S
        try:
            while not await _first(pause, request, lost):
                if self._presence and await self._nobody(client, subject) and not await _first(_GRACE_S, request):
                    raise _absent(subject)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            if not request.done():
                raise BrokerUnreachable(f"the connection was lost before {subject} was answered")
            return request.result()
        except nats.errors.NoRespondersError:
            raise _absent(subject) from None
        finally:
            self._open.discard(lost)
            request.cancel()

    async def _nobody(self, client: RelayClient, subject: str) -> bool:
        """Whether nobody answers a subject. Silence means that a worker is present, but slow."""
        try:
            await client.request(querying.presence_subject(subject), timeout=_LOOK_TIMEOUT_S)
        except nats.errors.NoRespondersError:
            return True
        except (TimeoutError, nats.errors.Error):
            return False
        return False

    def _on_down(self) -> None:
        """End all waiting queries: an answer that is sent now cannot arrive."""
        for lost in self._open:
            if not lost.done():
                lost.set_result(None)


async def _first(seconds: float, *futures: asyncio.Future[Any]) -> bool:
    """Wait until one of the futures is done; False if none is within ``seconds``."""
    done, _ = await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


def _absent(subject: str) -> NoResponder:
    hint = "does a worker of the context run that answers it?"
    return NoResponder(f"nobody answers {subject}", remote=NoResponder.code, hint=hint)


def _encode(payload: Any) -> bytes:
    try:
        plain = to_jsonable_python(payload)
    except PydanticSerializationError as error:
        raise InvalidPayload(str(error), field="payload") from None
    if not isinstance(plain, dict):
        raise InvalidPayload("must be a mapping or a pydantic model", field="payload")
    return encode_payload(plain).encode()


def _headers(seconds: float) -> dict[str, str]:
    context = RequestContext.current_or_new()
    ids = {CORRELATION: context.correlation_id, CAUSATION: context.causation_id}
    said = {name: quoted(check_id(str(value), name).shown) for name, value in ids.items() if value is not None}
    if context.actor is not None:
        said |= context.actor.headers
    if context.traceparent is not None and (trace := Trace.parse(context.traceparent)) is not None:
        said[TRACEPARENT] = trace.value
    return {**said, querying.TIMEOUT: str(max(1, int(min(seconds, _NO_LIMIT_S) * 1_000)))}


def _read(subject: str, reply: Msg, answer: Any) -> Maybe[Any]:
    headers = reply.headers or {}
    if (code := headers.get(querying.ERROR_CODE)) is not None:
        kind = QueryTimeout if code == querying.TOO_SLOW else QueryFailed
        raise kind(f"{subject}: {code}: {headers.get(querying.ERROR, '')}", remote=code)
    if querying.ANSWERED_BY not in headers and querying.is_puback(reply.data):
        raise AnsweredByStream(
            f"a stream took the query {subject} and confirmed it",
            remote=AnsweredByStream.code,
            hint="set no_ack = true for the stream and run: relay streams ensure",
        )
    if answer is querying.Raw:
        return Some(reply.data)
    try:
        value = read_json(reply.data)
        if value is None:
            return NOTHING
        return Some(value if answer is None else TypeAdapter(answer).validate_json(reply.data))
    except MalformedMessage as error:
        raise InvalidAnswer(f"{subject}: {error.message}", remote=querying.NO_ANSWER) from None
    except ValidationError as error:
        text = f"{subject}: the answer does not fit: {validation(error)}"
        raise InvalidAnswer(text, remote=querying.NO_ANSWER) from None
