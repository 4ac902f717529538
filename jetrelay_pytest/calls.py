"""Calls handlers and tasks in the test itself, each in its own transaction, as a worker does elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from relay.adapters.postgres.transactions import Settlement
from relay.domain.errors import AlreadyProcessed, UnsupportedTarget
from relay.execution.calls import PreparedCall
from relay.execution.signatures import Inject

#: With more calls than this in one `drain`, we assume that events or tasks cause each other without end.
_MAX_CALLS: Final = 1_000

#: Makes the session of one call: a sessionmaker, or ``Session``, which has no database.
Sessions = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class _TestTransaction:
    """What a function gets from its transaction: the session.

    `call` refuses a function that takes a connection.
    """

    session: Any
    connection: None = None
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Transactions:
    """Transactions of the test's sessions, instead of those that settle a row.

    ``sessions`` and ``async_sessions`` make them for plain functions and for coroutines.
    """

    sessions: Sessions = Session
    async_sessions: Sessions = AsyncSession

    def for_row(self, _limit: timedelta | None = None) -> Transactions:
        """See `relay.adapters.postgres.transactions.HandlerTransactions`."""
        return self

    @contextmanager
    def settle(self, _settlement: Settlement) -> Iterator[Any]:
        """Begin the transaction of a plain function; it commits when the block ends."""
        with self.sessions() as session, session.begin():
            yield _TestTransaction(session)

    @asynccontextmanager
    async def settle_async(self, _settlement: Settlement) -> AsyncIterator[Any]:
        """Begin the transaction of a coroutine; it commits when the block ends."""
        async with self.async_sessions() as session, session.begin():
            yield _TestTransaction(session)


class InMemory:
    """What `OutboxInMemory` and `TasksInMemory` have in common: each row is due until its call has succeeded."""

    def __init__(self) -> None:
        #: With more calls than this in one `drain`, we assume that they cause each other without end.
        self.max_calls = _MAX_CALLS
        self._attempts = Counter[UUID]()
        #: The rows that are done, each for whoever did it.
        self._done: set[tuple[str, UUID]] = set()

    def _each(
        self, items: Iterable[Any], prepare: Callable[[Any, int], PreparedCall | None], reader: str = ""
    ) -> Iterator[PreparedCall]:
        """Yield the calls for rows; ``prepare`` gets a row and the number of its attempt, and may skip it.

        A row is done when the next call is asked for.
        """
        calls = 0
        for item in items:  # they grow meanwhile
            row = item.row
            if (reader, row.id) in self._done:
                continue
            self._attempts[row.id] += 1
            prepared = prepare(row, self._attempts[row.id])
            if prepared is None:
                continue
            calls += 1
            if calls > self.max_calls:
                raise AssertionError(f"{self.max_calls} calls, and {item} comes again: do they end?")
            yield prepared
            self._done.add((reader, row.id))


def call(prepared: PreparedCall) -> None:
    """Make a call. It raises what the function raises, except AlreadyProcessed: that work was done before."""
    _check(prepared)
    with prepared.context.use():
        try:
            if prepared.function.signature.is_async:
                asyncio.run(_running(prepared))
            else:
                prepared.run_in_thread()
        except AlreadyProcessed:
            return


async def call_async(prepared: PreparedCall) -> None:
    """Do the same on the event loop of the test; a plain function runs in a thread."""
    if not prepared.function.signature.is_async:
        await asyncio.to_thread(call, prepared)
        return
    _check(prepared)
    with prepared.context.use():
        try:
            await prepared.run()
        except AlreadyProcessed:
            return


def call_each(calls: Iterable[PreparedCall]) -> int:
    """Make calls one after the other; returns how many. Raises as `call` does."""
    number = 0
    for number, prepared in enumerate(calls, 1):  # noqa: B007 - the last number counts
        call(prepared)
    return number


async def call_each_async(calls: Iterable[PreparedCall]) -> int:
    """Do the same on the event loop of the test."""
    number = 0
    for number, prepared in enumerate(calls, 1):  # noqa: B007 - the last number counts
        await call_async(prepared)
    return number


def _check(prepared: PreparedCall) -> None:
    """Raise UnsupportedTarget if the function takes a connection: in memory there is none."""
    signature = prepared.function.signature
    if not {Inject.CONNECTION, Inject.ASYNC_CONNECTION}.isdisjoint(signature.others.values()):
        raise UnsupportedTarget(
            f"{prepared.function.function.__qualname__} takes a psycopg connection, and in memory there is none",
            hint="take a SQLAlchemy session, or test on real servers: docs/how-to/testing.md",
        )


async def _running(prepared: PreparedCall) -> None:
    await prepared.run()
