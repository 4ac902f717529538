"""Our own statements in few round trips: prepared once on a connection, then sent and answered together.

Through a pooler in transaction mode no statement is prepared by name: the server then plans each statement again.

Every message passes through here, so this calls libpq directly. psycopg's own pipeline, with a cursor for each
statement, takes three times as long in Python. `exchange` is the whole protocol. It waits nowhere itself: a thread
drives it by `FunctionConnection` (`relay.adapters.postgres.function_connections`), the event loop by `fetch`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from relay.adapters.postgres.adapters import reading
from relay.adapters.postgres.pool import Connection, prepares
from relay.adapters.postgres.sql import statement

#: A statement's name in ``sql/`` and its values.
Command: TypeAlias = tuple[str, Mapping[str, Any]]

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")
_GOOD: Final = {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK}
BEGIN: Final[Command] = ("session/begin", {})
COMMIT: Final[Command] = ("session/commit", {})
ROLLBACK: Final[Command] = ("session/rollback", {})


class Sent(NamedTuple):
    """A statement as libpq takes it: how it is known, its text, and its values."""

    name: bytes
    text: bytes
    values: list[bytes | None]


class Prepared(dict[bytes, bytes]):
    """The statements that a connection knows, and the name of each on the server.

    No name is given twice: the server may still know a statement that is forgotten here.
    """

    def __init__(self) -> None:
        super().__init__()
        self._given = 0

    def name(self, statement: bytes) -> bytes:
        """Return a new name for a statement."""
        self._given += 1
        return b"%s_%d" % (statement, self._given)


def exchange(
    libpq: PGconn, prepared: Prepared | None, statements: Sequence[Sent], late: int = 0
) -> Generator[bool, None, list[PGresult]]:
    """Run statements in one round trip; returns a result for each. When one fails, those after it do not run.

    ``late``: so many at the end may fail without an error. Then there are fewer results.

    ``prepared``: the statements that the connection knows by name; None if it may know none. Yields when it must
    wait: True until it can write, False until there is input. Raises psycopg's errors. If the connection is lost
    before the answer, the server may or may not have run the statements.
    """
    libpq.enter_pipeline_mode()
    kept = _send(libpq, prepared, statements)
    while libpq.flush():
        yield True
    results: list[PGresult] = []
    while True:
        # At each wait another thread may run. So there are as few waits as possible.
        while libpq.is_busy():
            yield False
            libpq.consume_input()
        result = libpq.get_result()
        if result is None:
            if libpq.status == ConnStatus.BAD:
                raise psycopg.OperationalError("the connection is lost")
        elif result.status == ExecStatus.PIPELINE_SYNC:
            break
        else:
            results.append(result)
            # The None that ends this statement's results has arrived with them.
            if result.status in _GOOD:
                libpq.get_result()
    libpq.exit_pipeline_mode()
    try:
        return _checked(results, kept, prepared, late)
    except InvalidSqlStatementName:
        # The driver has deallocated every statement, as it does after a rollback. Some may be there again.
        if prepared is not None:
            prepared.clear()
        raise


#: The statement that a result prepares, and its name on the server.
_Kept: TypeAlias = tuple[bytes, bytes] | None


def _send(libpq: PGconn, prepared: Prepared | None, statements: Sequence[Sent]) -> list[_Kept]:
    """Send statements; returns for each result what it prepares, if it does."""
    kept = list[_Kept]()
    new = dict[bytes, bytes]()
    for own, text, values in statements:
        if prepared is None:
            libpq.send_query_params(text, values)
        else:
            if (name := prepared.get(own) or new.get(own)) is None:
                name = new[own] = prepared.name(own)
                libpq.send_prepare(name, text)
                kept.append((own, name))
            libpq.send_query_prepared(name, values)
        kept.append(None)
    libpq.pipeline_sync()
    return kept


def _checked(results: list[PGresult], kept: list[_Kept], prepared: Prepared | None, late: int) -> list[PGresult]:
    """Note which statements are prepared now; returns the results of those that ran. Raises the first error."""
    good: list[PGresult] = []
    needed = kept.count(None) - late
    for result, new in zip(results, kept, strict=True):
        if result.status not in _GOOD:
            if late and len(good) >= needed:
                return good
            raise error_from_result(result)
        if new is None:
            good.append(result)
        elif prepared is not None:
            prepared[new[0]] = new[1]
    return good


# --- on the event loop ---

_known: Final[WeakKeyDictionary[Connection, Prepared]] = WeakKeyDictionary()


async def fetch(connection: Connection, command: Command) -> list[dict[str, Any]]:
    """Run one statement in its own transaction and return its rows. Raises psycopg's errors."""
    sent = as_sent(command)
    try:
        return await fetch_sent(connection, sent)
    except InvalidSqlStatementName:
        return await fetch_sent(connection, sent)


async def fetch_sent(connection: Connection, sent: Sent) -> list[dict[str, Any]]:
    """Run a statement as `fetch` does, but only once: it is not repeated."""
    [found] = await fetch_all(connection, [sent])
    return found


async def fetch_all(connection: Connection, sent: Sequence[Sent]) -> list[list[dict[str, Any]]]:
    """Run statements in one round trip and one transaction, once only; returns the rows of each."""
    return [rows(result, connection) for result in await run_all(connection, sent)]


async def fetch_tuples(connection: Connection, commands: Sequence[Command]) -> list[list[tuple[Any, ...]]]:
    """Run statements in one round trip and a transaction of their own; returns the rows of each."""
    sent = [as_sent(it) for it in commands]
    try:
        results = await run_all(connection, sent)
    except InvalidSqlStatementName:
        results = await run_all(connection, sent)
    return [tuples(it, connection) for it in results]


async def run_all(connection: Connection, sent: Sequence[Sent], *, named: bool = True) -> list[PGresult]:
    """As `fetch_all`; returns the results as they are. ``named``: False: prepare nothing, and miss nothing."""
    prepared = _known.setdefault(connection, Prepared()) if named and prepares(connection) else None
    libpq = connection.pgconn
    waits = exchange(libpq, prepared, sent)
    try:
        while True:
            await _ready(libpq.socket, write=next(waits))
    except StopIteration as end:
        return list(end.value)


async def _ready(socket: int, *, write: bool) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
    add(socket, _resolve, ready)
    try:
        await ready
    finally:
        remove(socket)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# --- both ---


def as_sent(command: Command) -> Sent:
    """Return a statement as libpq takes it."""
    name, values = command
    text, order = _positional(name)
    return Sent(_name(name), text, [_text(values[key]) for key in order])


def rows(result: PGresult, connection: psycopg.Connection[Any] | Connection) -> list[dict[str, Any]]:
    """Return the rows of a result as dictionaries."""
    names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
    return [dict(zip(names, row, strict=True)) for row in tuples(result, connection)]


def tuples(result: PGresult, connection: psycopg.Connection[Any] | Connection) -> list[tuple[Any, ...]]:
    """Return the rows of a result."""
    reader = Transformer(reading(connection))
    reader.set_pgresult(result)
    return reader.load_rows(0, result.ntuples, tuple)


@cache
def _name(name: str) -> bytes:
    return f"jetrelay_{name}".replace("/", "_").encode()


@cache
def _positional(name: str) -> tuple[bytes, list[str]]:
    """Return the text of a statement as libpq takes it, and the names of its parameters in order."""
    text = statement(name)
    order = list(dict.fromkeys(_PARAMETER.findall(text)))
    return _PARAMETER.sub(lambda found: f"${order.index(found[1]) + 1}", text).encode(), order


def _text(value: Any) -> bytes | None:
    """Return a value as PostgreSQL text. The statement defines its type."""
    match value:
        case None:
            return None
        case bool():
            return b"t" if value else b"f"
        case timedelta():
            return b"%d microseconds" % (value // timedelta(microseconds=1))
        case str() | UUID() | int():
            return str(value).encode()
        case _:
            raise TypeError(f"a {type(value).__name__} cannot be sent in a pipeline")
