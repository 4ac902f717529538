"""Our own statements on the event loop, prepared once on a connection and sent by libpq directly.

For statements that run for every message: the driver's cursor takes several times as long in Python.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq.abc import PGconn, PGresult

from relay.adapters.postgres.pipeline import GOOD, Command, as_sent, rows
from relay.adapters.postgres.pool import Connection

#: The names of the statements that are prepared on a connection.
_prepared: Final[WeakKeyDictionary[Connection, set[bytes]]] = WeakKeyDictionary()


async def fetch(connection: Connection, command: Command) -> list[dict[str, Any]]:
    """Run one statement in its own transaction and return its rows. Raises psycopg's errors."""
    try:
        return await _fetch(connection, command)
    except psycopg.errors.InvalidSqlStatementName:
        # Nothing has run. Either the driver has deallocated every statement, as it does after a rollback, or the
        # task that prepared this one was cancelled. Forget only this one: others may still be prepared.
        _prepared[connection].discard(as_sent(command)[0])
        return await _fetch(connection, command)


async def _fetch(connection: Connection, command: Command) -> list[dict[str, Any]]:
    name, text, values = as_sent(command)
    known, libpq = _prepared.setdefault(connection, set()), connection.pgconn
    if name not in known:
        # Noted first: a task that is cancelled while it waits could not note it afterwards.
        known.add(name)
        libpq.send_prepare(name, text)
        _checked(await connection.wait(execute(libpq)))
    libpq.send_query_prepared(name, values)
    # Usually everything goes out at once. Otherwise the driver sends the rest.
    results = await (connection.wait(execute(libpq)) if libpq.flush() else _results(libpq))
    return rows(_checked(results), connection)


async def _results(libpq: PGconn) -> list[PGresult]:
    """Return the results of what was sent. Raises psycopg.OperationalError when the connection is lost."""
    results: list[PGresult] = []
    while True:
        while libpq.is_busy():
            await _readable(libpq.socket)
            libpq.consume_input()
        result = libpq.get_result()
        if result is None:
            return results
        results.append(result)


async def _readable(socket: int) -> None:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(socket, _resolve, readable)
    try:
        await readable
    finally:
        loop.remove_reader(socket)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _checked(results: Sequence[PGresult]) -> PGresult:
    for result in results:
        if result.status not in GOOD:
            raise error_from_result(result)
    if not results:
        raise psycopg.OperationalError("the connection is lost")
    return results[0]
