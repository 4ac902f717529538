"""SQLAlchemy's asynchronous connections, on psycopg or asyncpg: they write rows when these are awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy import event as listen
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.util import await_only

from relay.adapters.postgres.enqueue import Ready, Row
from relay.adapters.postgres.targets import check_connection, insert_sqlalchemy_async
from relay.adapters.postgres.unawaited_rows import Queue
from relay.domain.errors import NoTransaction


def write(target: AsyncConnection, rows: Sequence[Row]) -> Awaitable[None]:
    """Write ``rows`` when they are awaited. Raises NoTransaction, UnsupportedTarget and what `refusals` raises."""
    if not rows:
        return Ready(None)
    connection = target.sync_connection
    if connection is None:
        raise NoTransaction("the connection is not open", field="target", hint="use `async with engine.connect()`")
    if connection.invalidated and not connection.in_transaction():
        return insert_sqlalchemy_async(target, rows)  # it connects again
    check_connection(connection)
    if not connection.in_transaction():
        connection.begin()  # as a statement does, so that a commit really commits
    queue = _WAITING.get(connection)
    if queue is None:
        queue = Queue(
            partial(insert_sqlalchemy_async, target), partial(_guard, connection), partial(_free, connection)
        )
    return queue.promise(rows)


# --- rows that were not awaited ---

_WAITING: Final[WeakKeyDictionary[Connection, Queue]] = WeakKeyDictionary()
_LISTENING: Final[WeakKeyDictionary[Connection, bool]] = WeakKeyDictionary()


def _guard(connection: Connection, queue: Queue) -> None:
    if connection not in _LISTENING:
        for name in ("before_cursor_execute", "savepoint", "release_savepoint", "commit", "prepare_twophase"):
            listen.listen(connection, name, _write_first)
        for name in ("rollback", "rollback_savepoint", "rollback_twophase"):
            listen.listen(connection, name, _drop)
        _LISTENING[connection] = True
    _WAITING[connection] = queue


def _free(connection: Connection) -> None:
    _WAITING.pop(connection, None)


def _write_first(connection: Connection, *_: Any) -> None:
    if (queue := _WAITING.get(connection)) is not None:
        await_only(queue.flush())


def _drop(connection: Connection, *_: Any) -> None:
    # These rows belong to this transaction or savepoint: earlier rows were written when it began.
    if (queue := _WAITING.get(connection)) is not None:
        queue.drop()
