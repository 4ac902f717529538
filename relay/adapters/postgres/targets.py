"""The sessions and connections of applications, through which rows are written in an open transaction.

A further kind of target is a module that says in ``WRITERS`` how rows are written, and its name in `_KINDS`. For
type checkers, its classes belong to SyncTarget or AsyncTarget.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from relay.adapters.postgres import psycopg_targets, sqlalchemy_targets
from relay.adapters.postgres.enqueue import Ready, Row, Write
from relay.domain.errors import UnsupportedTarget

SyncTarget: TypeAlias = Session | scoped_session[Any] | Connection | psycopg.Connection[Any]
AsyncTarget: TypeAlias = AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any]
Value = TypeVar("Value")
Other = TypeVar("Other")

_KINDS: Final = (sqlalchemy_targets, psycopg_targets)
_WRITERS: Final[Mapping[type, Write]] = {
    target: write for kind in _KINDS for target, write in kind.WRITERS.items()
}


def write(target: SyncTarget | AsyncTarget, rows: Sequence[Row], answer: Value) -> Value | Awaitable[Value]:
    """Record ``rows`` in the open transaction of ``target`` and return ``answer``, awaitable for an async target.

    A session keeps the rows until it commits. A connection writes them at once, in one statement for each kind of
    row. Raises UnsupportedTarget and NoTransaction.
    """

    def answering(_: None) -> Value:
        return answer

    for base in type(target).__mro__:
        if base in _WRITERS:
            written = _WRITERS[base](target, rows)
            return answer if written is None else then(written, answering)
    raise UnsupportedTarget(
        f"{type(target).__name__} is not a session or connection",
        field="target",
        hint="pass a SQLAlchemy Session, AsyncSession, Connection, AsyncConnection or a psycopg connection",
    )


def then(value: Value | Awaitable[Value], change: Callable[[Value], Other]) -> Other | Awaitable[Other]:
    """Apply ``change`` to what `write` returned."""
    if isinstance(value, Ready):
        return Ready(change(value.value))
    if isinstance(value, Awaitable):
        return _change(value, change)
    return change(value)


async def _change(value: Awaitable[Value], change: Callable[[Value], Other]) -> Other:
    return change(await value)
