"""AnswerQueries: answers the queries of other services, by request and reply over NATS.

All processes that run it are one group; NATS chooses one process for each query. Coroutines run on the event loop,
plain functions in threads. If there are too many queries, the rest is refused at once, so that no program waits
for an answer that cannot come in time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic_core import PydanticSerializationError, to_jsonable_python
from uuid_utils.compat import uuid7

from relay.adapters.jetstream.client import RelayClient
from relay.adapters.jetstream.connection import NatsConnection
from relay.bus.context import RequestContext, next_span
from relay.bus.errors import InvalidQuery
from relay.bus.queries import Answerable
from relay.bus.result import Maybe, Some
from relay.concurrency import Slots, apart, is_ours
from relay.domain import querying, traceparent
from relay.domain.actor import actor_of
from relay.domain.disclosure import safe_text
from relay.domain.envelopes.event import CORRELATION
from relay.domain.errors import (
    BrokerUnreachable,
    DomainError,
    InvalidActor,
    InvalidPayload,
    MalformedMessage,
    PayloadUnreachable,
)
from relay.domain.facts import FactSink, QueryRefused
from relay.domain.identity import read_id
from relay.domain.limits import WIRE_RESERVE_BYTES, encode_payload

#: How many queries a process answers at the same time; how many of these in plain functions, which need threads.
_MAX_QUERIES: Final = 100
_MAX_THREADS: Final = 8


class AnswerQueries:
    """Answers for one context. ``offered``: its queries by subject. ``timeout``: of one answer."""

    def __init__(
        self,
        context: str,
        offered: Mapping[str, Answerable],
        connection: NatsConnection,
        facts: FactSink,
        timeout: timedelta,
    ) -> None:
        self._context = context
        self._offered = offered
        self._connection = connection
        self._facts = facts
        self._timeout = timeout
        self._client: RelayClient | None = None
        self._queries: list[Subscription] = []
        self._presence: list[Subscription] = []
        self._running: set[asyncio.Task[None]] = set()
        self._slots: Slots | None = None

    async def start(self) -> None:
        """Listen from now on, whenever there is a connection. Returns at once."""
        self._slots = Slots(_MAX_THREADS)
        self._connection.on_up.append(self._on_up)
        self._on_up()

    async def stop(self) -> None:
        """Take no more queries, and answer those that have begun. Until then this worker counts as present."""
        self._connection.on_up.remove(self._on_up)
        await _drain(self._queries)
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=self._timeout.total_seconds())
            for task in late:
                task.cancel()
        await _drain(self._presence)

    def _on_up(self) -> None:
        self._run(self._listen())

    async def _listen(self) -> None:
        """Subscribe, once for each client: nats-py renews the subscriptions of a client that reconnects."""
        with suppress(BrokerUnreachable, nats.errors.Error, OSError):
            client = await self._connection.client()
            if client is self._client:
                return
            self._client, self._queries, self._presence = client, [], []
            group = f"relay-{self._context}"
            for subject, answerable in self._offered.items():
                accept = partial(self._accept, client, subject, answerable)
                self._queries.append(await client.subscribe(subject, queue=group, cb=accept))
                here = querying.presence_subject(subject)
                self._presence.append(await client.subscribe(here, queue=group, cb=_here))

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _accept(self, client: RelayClient, subject: str, answerable: Answerable, query: Msg) -> None:
        """Begin an answer, but not to a subject of the server: the answer would be a command to the server."""
        if not query.reply or query.reply.startswith("$"):
            return
        if len(self._running) >= _MAX_QUERIES:
            await self._send(client, query, b"", querying.error_headers(querying.BUSY))
            return
        self._run(self._answer(client, subject, answerable, query))

    async def _answer(self, client: RelayClient, subject: str, answerable: Answerable, query: Msg) -> None:
        begun = time.monotonic()
        code, error, body = querying.TOO_SLOW, "", b""
        seconds = querying.read_timeout(query.headers or {}, self._timeout).total_seconds()
        limit = asyncio.timeout(seconds)
        try:
            with _context(query.headers or {}).use():
                async with limit:
                    body = _encode(await self._ask(answerable, query.data))
            code = querying.TOO_LARGE if len(body) + WIRE_RESERVE_BYTES > client.max_payload else ""
        except BaseException as failure:
            if is_ours(failure):
                raise
            code, error = (querying.TOO_SLOW, "") if limit.expired() else (_code(failure), safe_text(failure))
        if code:
            took = time.monotonic() - begun
            self._facts(QueryRefused(context=self._context, subject=subject, code=code, error=error, seconds=took))
        await self._send(client, query, b"" if code else body, querying.error_headers(code) if code else {})

    async def _ask(self, answerable: Answerable, body: bytes) -> Maybe[Any]:
        query = answerable.query(querying.read_query(body))
        if answerable.waits:
            return await apart(answerable.bus.ask_async(query))
        assert self._slots is not None
        failed: list[BaseException] = []
        result = await self._slots.in_thread(lambda: answerable.bus.ask(query), failed.append)
        if failed:
            raise failed[0]
        assert result is not None
        return result

    async def _send(self, client: RelayClient, query: Msg, body: bytes, headers: dict[str, str]) -> None:
        """Reply. If there is no connection, the asking program has stopped waiting, too."""
        with suppress(nats.errors.Error, OSError):
            await client.publish(query.reply, body, headers={**headers, querying.ANSWERED_BY: self._context})


async def _drain(subscriptions: Sequence[Subscription]) -> None:
    """End subscriptions when all queries that have arrived are answered."""
    for subscription in subscriptions:
        with suppress(nats.errors.Error, OSError):
            await subscription.drain()  # type: ignore[no-untyped-call]


async def _here(look: Msg) -> None:
    """Say that this worker is present."""
    if look.reply and not look.reply.startswith("$"):
        with suppress(nats.errors.Error, OSError):
            await look.respond(b"")


def _context(headers: Mapping[str, str]) -> RequestContext:
    """The context of the asking program, without a cause: a query changes nothing. Raises InvalidActor."""
    try:
        correlation = read_id(unquote(headers.get(CORRELATION, "")), CORRELATION).value
    except MalformedMessage:
        correlation = uuid7()
    trace = next_span(traceparent.find(headers))
    return RequestContext(correlation_id=correlation, actor=actor_of(headers), traceparent=trace)


def _encode(result: Maybe[Any]) -> bytes:
    if isinstance(result, Some) and isinstance(result.value, querying.Raw):
        return result.value
    return encode_payload(to_jsonable_python(result.value)).encode() if isinstance(result, Some) else b"null"


def _code(failure: BaseException) -> str:
    """The code that is sent for an exception. The exception's text is not sent."""
    match failure:
        case MalformedMessage() | InvalidActor():
            return querying.UNREADABLE
        case InvalidQuery() | DomainError() | PayloadUnreachable():
            return failure.code
        case InvalidPayload() | PydanticSerializationError():
            return querying.NO_ANSWER
    return querying.FAILED
