"""What tests of Python handlers share: functions of each kind that write an effect, and what calls them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer.functions import PythonEventHandler, Unknown
from consumer.handlers import HandlerRegistry, MessageContext
from consumer.message_rows import FunctionRows
from relay.adapters.postgres.transactions import HandlerTransactions
from relay.execution.calls import PreparedCall
from relay.execution.prefetch import USUAL_LIMITS, PrefetchLimits
from relay.execution.runners import RunInThread
from relay.ports import ClaimedMessage, HandlerRequest
from tests.integration.consuming import OneByOne, Subscription

WRITE = "INSERT INTO effects (message_id, xid) VALUES ('{}', pg_current_xact_id()::text)"


class Vibe(BaseModel):
    title: str


Then = Callable[[Any], Any]
"""What a handler does after it has written its effect; it gets the session or connection."""


def sync_session(then: Then) -> Callable[..., Any]:
    def handle(vibe: Vibe, session: Session, context: MessageContext) -> None:
        session.execute(text(WRITE.format(context.message_id)))
        then(session)

    return handle


def sync_psycopg(then: Then) -> Callable[..., Any]:
    def handle(vibe: Vibe, connection: psycopg.Connection[Any], context: MessageContext) -> None:
        connection.execute(WRITE.format(context.message_id))
        then(connection)

    return handle


def async_session(then: Then) -> Callable[..., Any]:
    async def handle(vibe: Vibe, session: AsyncSession, context: MessageContext) -> None:
        await session.execute(text(WRITE.format(context.message_id)))
        await _awaited(then(session))

    return handle


def async_psycopg(then: Then) -> Callable[..., Any]:
    async def handle(vibe: Vibe, connection: psycopg.AsyncConnection[Any], context: MessageContext) -> None:
        await connection.execute(WRITE.format(context.message_id))
        await _awaited(then(connection))

    return handle


async def _awaited(result: Any) -> None:
    if isinstance(result, Awaitable):
        await result


KINDS = {kind.__name__: kind for kind in (sync_session, sync_psycopg, async_session, async_psycopg)}


def nothing(_target: Any) -> None:
    """Return, and have it committed."""


class RunningLoop:
    """The loop of a test, as worker threads see theirs."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def run_coroutine(self, coro: Coroutine[Any, Any, Any], /) -> Any:
        return asyncio.run_coroutine_threadsafe(coro, self.loop).result(60)


class _Direct(RunInThread[UUID, ClaimedMessage, HandlerRequest]):
    """Tells what becomes of a message whose function takes too long."""

    given_up: asyncio.Future[None]

    async def _give_up(self, claim: ClaimedMessage, call: PreparedCall, seconds: float) -> None:
        await super()._give_up(claim, call, seconds)
        self.given_up.set_result(None)


class InThread:
    """Processes messages as a worker thread does, and waits until the event loop is done with them too.

    ``threads``: those it has started; one whose function took too long may go on after `process`.
    ``replaced``: the threads that others would have been put in the place of. ``waiting``: what the process has
    fetched and not begun. ``ahead``: whether each message is claimed before its turn.
    """

    def __init__(self, one: OneByOne, *, ahead: bool, limits: PrefetchLimits = USUAL_LIMITS) -> None:
        self.threads: list[threading.Thread] = []
        self.replaced: list[threading.Thread] = []
        self.waiting: list[UUID] = []
        self._ahead = ahead
        self._delays: dict[UUID, timedelta] = {}
        assert isinstance(one.rows, FunctionRows)
        self._completions = one.completions
        self._direct = _Direct(
            rows=one.rows,
            on_loop=one.on_loop,
            completions=one.completions,
            transactions=one.rows.handler.transactions,
            loop=RunningLoop(),
            limits=limits,
            replace_thread=self.replaced.append,
            later=self._later,
            waiting=self.next,
        )
        self.ahead = self._direct.prefetch

    def next(self, limit: int) -> list[UUID]:
        return self.waiting[:limit]

    async def process(self, message_id: UUID) -> timedelta | None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[timedelta | None] = loop.create_future()
        given_up = self._direct.given_up = loop.create_future()

        def tell(how: Callable[[Any], None], what: object) -> None:
            with suppress(RuntimeError):  # a thread that was given up ends after its test, maybe without a loop
                loop.call_soon_threadsafe(how, what)

        def run() -> None:
            try:
                if self._ahead:
                    self.claim_ahead([message_id])
                tell(done.set_result, self._direct.run(message_id))
            except BaseException as error:
                tell(done.set_exception, error)

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()
        await asyncio.wait({done, given_up}, return_when=asyncio.FIRST_COMPLETED)
        if given_up.done():
            return self._delays.get(message_id)
        await self._completions.drain()
        return done.result()

    def claim_ahead(self, ids: list[UUID]) -> None:
        """Claim messages as under load, together with one that turns out to be gone."""
        self.waiting = ids
        while self.ahead._size <= len(ids):
            self.ahead._capacity()
        assert self.ahead.claim(uuid4()) is None
        self.waiting = []

    async def _later(self, message_id: UUID, delay: timedelta) -> None:
        self._delays[message_id] = delay


class Handling:
    """Messages of one subscription and the effects of their handlers.

    ``ahead``: whether worker threads find them claimed.
    """

    def __init__(self, sub: Subscription) -> None:
        self.sub = sub
        self.ahead = False
        self.limits = USUAL_LIMITS
        #: A chunk is one transaction, however slow the machine is.
        self.max_transaction = 3_600.0
        self._made: list[PythonEventHandler] = []
        self._direct: list[InThread] = []

    def handler(
        self, *functions: Callable[..., Any], timeout: float = 10, unknown: Unknown = "dead-letter", **routes: Any
    ) -> PythonEventHandler:
        """Serve functions as handlers of ``vibe_created`` 1, 2, …"""
        registry = routes.get("registry") or HandlerRegistry("tests")
        for version, function in enumerate(functions, 1):
            registry.handles("vibe_created", version=version)(function)
        limit = timedelta(seconds=timeout)
        transactions = HandlerTransactions(
            self.sub.url, limit=routes.get("limit", limit), application_name="handling"
        )
        handler = PythonEventHandler(
            registry, transactions, timeout=limit, unknown=unknown, max_transaction=self.max_transaction
        )
        self._made.append(handler)
        return self._made[-1]

    def process(self, handler: PythonEventHandler, **parts: Any) -> InThread | OneByOne:
        """What processes messages: a worker's thread if there is a plain function among the handlers."""
        one = self.sub.process(handler, **parts)
        if not handler.plain:
            return one
        self._direct.append(InThread(one, ahead=self.ahead, limits=self.limits))
        return self._direct[-1]

    async def close(self) -> None:
        """Wait for functions that were given up, too: their threads tell this loop when they are done."""
        for direct in self._direct:
            for thread in direct.threads:
                await asyncio.to_thread(thread.join, 60)
        for handler in self._made:
            await handler.transactions.close()

    async def received(self, payload: Any = None, *, version: int = 1, **fields: Any) -> UUID:
        """Put a message into the inbox; returns its id."""
        content = {
            "event_type": "vibe_created",
            "event_version": version,
            "payload": {"title": "Hello"} if payload is None else payload,
            **fields,
        }
        message_id = await self.sub.send(
            json.dumps(content).encode(), f"{self.sub.subject.removesuffix('.v1')}.v{version}"
        )
        await self.sub.pull().accept(await self.sub.fetch())
        return message_id

    async def effects(self) -> list[dict[str, Any]]:
        return await self.sub.query("SELECT message_id, xid FROM effects")

    async def state(self, message_id: UUID) -> str:
        row = await self.sub.row(message_id)
        return "processed" if row["processed_at"] else "dead" if row["dead_lettered_at"] else "open"

    async def steal(self, message_id: UUID) -> dict[str, Any]:
        """Have another worker claim the message; returns the row as that one has it."""
        await self.sub.query(
            "UPDATE inbox_messages SET claimed_until = now() - interval '1 second' WHERE message_id = %s",
            message_id,
        )
        assert await self.sub.inbox.claim(message_id, timedelta(seconds=30)) is not None
        return await self.sub.row(message_id)

    async def again(self, message_id: UUID, handler: PythonEventHandler) -> None:
        """Process once more, whatever back-off or claim there is."""
        await self.sub.query(
            "UPDATE inbox_messages SET next_attempt_at = NULL, claimed_until = now() - interval '1 second' "
            "WHERE message_id = %s",
            message_id,
        )
        await self.process(handler).process(message_id)


@asynccontextmanager
async def handling(sub: Subscription) -> AsyncIterator[Handling]:
    await sub.query("CREATE TABLE effects (message_id uuid, xid text)")
    handling = Handling(sub)
    try:
        yield handling
    finally:
        await handling.close()
