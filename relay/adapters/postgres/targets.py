"""The sessions and connections of applications, through which rows are written in an open transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from relay.adapters.postgres import enqueue, sessions
from relay.adapters.postgres.enqueue import Row
from relay.domain.errors import UnsupportedTarget

SyncTarget: TypeAlias = "Session | scoped_session[Any] | Connection | psycopg.Connection[Any]"
AsyncTarget: TypeAlias = (
    "AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any]"
)
Value = TypeVar("Value")
Other = TypeVar("Other")


class _Ready(Generic[Value]):
    """An awaitable that already has its value. It does no harm not to await it."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def __await__(self) -> Generator[None, None, Value]:
        yield from ()
        return self.value


def write(target: SyncTarget | AsyncTarget, rows: Sequence[Row], answer: Value) -> Value | Awaitable[Value]:
    """Record ``rows`` in the open transaction of ``target`` and return ``answer``, awaitable for an async target.

    A session keeps the rows until it commits. A connection writes them at once, in one statement for each kind of
    row. Raises UnsupportedTarget and NoTransaction.
    """
    if isinstance(target, scoped_session | async_scoped_session):
        target = target()
    match target:
        case Session():
            sessions.collect(target, rows)
            return answer
        case AsyncSession():
            sessions.collect(target.sync_session, rows)
            return _Ready(answer)
        case Connection():
            if rows:
                enqueue.insert_sqlalchemy(target, rows)
            return answer
        case psycopg.Connection():
            if rows:
                enqueue.insert_psycopg(target, rows)
            return answer
        case AsyncConnection() | psycopg.AsyncConnection():
            return _write_async(target, rows, answer)
    raise UnsupportedTarget(
        f"{type(target).__name__} is not a session or connection",
        field="target",
        hint="pass a SQLAlchemy Session, AsyncSession, Connection, AsyncConnection or a psycopg connection",
    )


def then(value: Value | Awaitable[Value], change: Callable[[Value], Other]) -> Other | Awaitable[Other]:
    """Apply ``change`` to what `write` returned."""
    if isinstance(value, _Ready):
        return _Ready(change(value.value))
    if isinstance(value, Awaitable):
        return _change(value, change)
    return change(value)


async def _change(value: Awaitable[Value], change: Callable[[Value], Other]) -> Other:
    return change(await value)


async def _write_async(
    target: AsyncConnection | psycopg.AsyncConnection[Any], rows: Sequence[Row], answer: Value
) -> Value:
    if rows and isinstance(target, AsyncConnection):
        await enqueue.insert_sqlalchemy_async(target, rows)
    elif rows and isinstance(target, psycopg.AsyncConnection):
        await enqueue.insert_psycopg_async(target, rows)
    return answer
