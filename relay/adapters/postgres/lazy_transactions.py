"""Connections for functions that begin transactions and savepoints late.

BEGIN and SAVEPOINT are sent together with the first statement of the function. Without a statement nothing is
sent, and no RELEASE before a COMMIT. For a function that asks the server nothing, they would double the cost of
its message. Everything that the driver, SQLAlchemy or a function sends goes through `wait`, including the first
command. Engines on top of these connections are made with `DIALECT`.

The first savepoint of a plain function is the transaction itself, because nothing comes before it there. To roll
back to it is to roll the transaction back and to begin another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg import errors, pq
from psycopg._preparing import Prepare, PrepareManager
from psycopg._queries import PostgresQuery
from psycopg.abc import PQGen
from psycopg.generators import execute
from psycopg.waiting import Ready, Wait
from sqlalchemy import Connection
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg, PGDialectAsync_psycopg

from relay.adapters.postgres.lent_sessions import OF_A_POOLER, Usual
from relay.adapters.postgres.pipeline import Command, as_sent
from relay.adapters.postgres.pool import prepares

Result = TypeVar("Result")

_AND: Final = b"; "
_ENDS: Final = {b"COMMIT", b"ROLLBACK"}
#: A statement that prepares one by name, or removes names: also ours.
_NAMING: Final = re.compile(rb"(?im)(?:^|;)\s*(?:prepare|deallocate)\b")
#: A statement that may change the role or the schemas. Most that match do not, such as an UPDATE of two lines.
_MOVING: Final = re.compile(rb"(?im)(?:^|;)\s*(?:set|reset)\b|set_config")


class _Names(PrepareManager):
    """The names of prepared statements that the driver knows.

    ``changed``: a function has prepared some itself, or has removed some. ``moved``: it may have changed its role
    or its schemas. What functions of the database do is not seen.
    """

    changed = moved = False

    def get(self, query: PostgresQuery, prepare: bool | None = None) -> tuple[Prepare, bytes]:
        self.changed = self.changed or _NAMING.search(query.query) is not None
        self.moved = self.moved or _MOVING.search(query.query) is not None
        return super().get(query, prepare)


class Lazy(psycopg.BaseConnection[Any]):
    """Commands that wait to be sent.

    ``before``: sent together with the next command, ahead of it; None when nothing waits. ``kept``: sent ahead of
    ``before``, or dropped if the transaction ends.
    """

    before: bytes | None = None
    kept: bytes | None = None
    #: What the connection is when it is lent.
    usual: Usual | None = None
    #: Where the session looks for tables when it is lent; None behind a pooler, which knows it.
    path: str | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._prepared = _Names()
        #: What functions have added, each with what removes it.
        self.listeners: list[tuple[Callable[[Any], None], Any]] = []

    @property
    def renamed(self) -> bool:
        """Whether a function has changed the names of prepared statements: the session is not for others."""
        return isinstance(self._prepared, _Names) and self._prepared.changed

    @property
    def moved(self) -> bool:
        """Whether a function may have changed its role or its schemas since the session was lent."""
        return isinstance(self._prepared, _Names) and self._prepared.moved

    def add_notice_handler(self, callback: Any) -> None:
        """As psycopg's. What a function adds is removed after it."""
        super().add_notice_handler(callback)
        self.listeners.append((super().remove_notice_handler, callback))

    def add_notify_handler(self, callback: Any) -> None:
        """As psycopg's. What a function adds is removed after it."""
        super().add_notify_handler(callback)
        self.listeners.append((super().remove_notify_handler, callback))

    @property
    def home(self) -> Sequence[Command]:
        """What a transaction needs before the row of its function is settled."""
        return [("session/home", {"path": self.path})] if self.moved and self.path is not None else []

    def restore(self) -> None:
        """Make the connection as it was when it was lent."""
        if isinstance(self._prepared, _Names):
            self._prepared.moved = False
        if self.usual is not None:
            self.usual.restore(self)

    def begin_step(self, command: bytes) -> None:
        """Set a savepoint as soon as something is sent in it."""
        self.before = _joined(self.before, command)

    def drop_step(self, command: bytes) -> bool:
        """Drop a savepoint that is not sent yet; False if it was sent."""
        waiting = self.before or b""
        if not waiting.endswith(command):
            return False
        self.before = waiting.removesuffix(command).removesuffix(_AND) or None
        return True

    def keep_step(self, command: bytes, release: bytes) -> None:
        """Release a savepoint, if it was sent and the transaction goes on."""
        if not self.drop_step(command):
            self.kept = _joined(self.kept, release)

    def is_all(self, _command: bytes) -> bool:
        """Whether a savepoint is the transaction itself."""
        return False

    def begin_again(self) -> None:
        """Begin the transaction once more, late. It was rolled back."""
        raise NotImplementedError

    def _take(self) -> bytes | None:
        command = _joined(self.kept, self.before)
        self.kept = self.before = None
        return command


class LazyConnection(Lazy, psycopg.Connection[Any]):
    """A connection for plain functions. While it is ``lent`` they may write, but neither commit nor roll back.

    ``forgotten``: the driver has deallocated every prepared statement, including ours. ``undone``: a function has
    rolled back all that it did in the session, except for what outlives a transaction.
    """

    lent = False
    forgotten = False
    undone = False
    #: What begins the transaction, whether that is one command, and the savepoint that is the transaction itself.
    _begin: bytes | None = None
    _alone = False
    _all: bytes | None = None
    #: Whether the statement under way takes the BEGIN along, see `LazyCursor`.
    _merges = False

    def begin_late(self, command: bytes, *, alone: bool) -> None:
        """Begin a transaction as soon as something is sent in it. ``alone``: it is a single command."""
        self.before = self._begin = command
        self._alone = alone

    def forget_steps(self) -> None:
        """Drop all that waits: the transaction is over."""
        self.before = self.kept = self._begin = self._all = None

    @property
    def _begins(self) -> bool:
        return self.before is not None and self.before is self._begin

    def begin_step(self, command: bytes) -> None:
        """Set a savepoint as soon as something is sent in it, unless it is the transaction itself."""
        if self._begins and self._alone:
            self._all = command
        else:
            super().begin_step(command)

    def drop_step(self, command: bytes) -> bool:
        """Drop a savepoint that is not sent yet; False if it was sent."""
        if command != self._all:
            return super().drop_step(command)
        if unsent := self._begins:
            self._all = None
        return unsent

    def keep_step(self, command: bytes, release: bytes) -> None:
        """Release a savepoint, if it was sent and the transaction goes on."""
        if command == self._all:
            self._all = None
        else:
            super().keep_step(command, release)

    def is_all(self, command: bytes) -> bool:
        """Whether a savepoint is the transaction itself."""
        return command == self._all

    def begin_again(self) -> None:
        """Begin the transaction once more, late. It was rolled back."""
        self.kept = self._all = None
        self.before = self._begin
        self.undone = True

    def commit(self) -> None:
        """Commit. Raises ProgrammingError while it is lent."""
        self._refuse("commit")
        super().commit()

    def rollback(self) -> None:
        """Roll back. Raises ProgrammingError while it is lent."""
        self._refuse("rollback")
        super().rollback()

    def _refuse(self, what: str) -> None:
        if self.lent:
            raise psycopg.ProgrammingError(
                f"{what}() is not allowed here: the transaction ends when the function returns"
            )

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        self.forgotten = self.forgotten or name is None
        return super()._deallocate(name)

    def _start_query(self) -> PQGen[None]:
        if not self._merges:
            yield from super()._start_query()

    def wait(self, gen: Generator[Any, Any, Result], *args: Any, **options: Any) -> Result:
        """Send what waits, then do what the driver does."""
        if not self._merges and (command := self._take()) is not None:
            super().wait(_send(self.pgconn, command))
        return super().wait(gen, *args, **options)

    def merge(self, run: Callable[[], Result]) -> Result:
        """Let the statement that ``run`` executes take the BEGIN along, if nothing else waits."""
        if not (self._begins and self._alone and self.kept is None):
            return run()
        self._merges = True
        try:
            return run()
        finally:
            self._merges = False

    def take_begin(self) -> bytes | None:
        """The BEGIN that the statement under way takes along; None if it takes none."""
        if not self._merges:
            return None
        self._merges = False
        return self._take()


class LazyCursor(psycopg.Cursor[Any]):
    """A cursor of a `LazyConnection`. Its statement goes to the server together with the BEGIN, if it is only one.

    A text without values may be several statements, which the server takes only alone.
    """

    _conn: LazyConnection

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        """Do what the driver does."""
        if self._conn.before is None:
            return super().execute(query, params, **options)
        return self._conn.merge(partial(super().execute, query, params, **options))

    def _maybe_prepare_gen(
        self, pgq: Any, *, prepare: bool | None = None, binary: bool | None = None
    ) -> PQGen[None]:
        if (begin := self._conn.take_begin()) is None:
            yield from super()._maybe_prepare_gen(pgq, prepare=prepare, binary=binary)
            return
        kept = self._conn._prepared  # noqa: SLF001 - as the driver does for each statement
        prep, name = self._get_prepared(pgq, prepare)
        if prep is Prepare.SHOULD or (not pgq.params and b";" in pgq.query):
            # The first is needed once for each statement and connection.
            yield from _send(self._pgconn, begin)
            yield from super()._maybe_prepare_gen(pgq, prepare=prepare, binary=binary)
            return
        whole = False
        try:
            self._pgconn.enter_pipeline_mode()
            self._pgconn.send_query_params(begin, None)
            if prep is Prepare.NO:
                self._execute_send(pgq, binary=binary, force_extended=True)
            else:
                self._send_query_prepared(name, pgq, binary=binary)
            self._pgconn.pipeline_sync()
            key = kept.maybe_add_to_cache(pgq, prep, name)
            begun, *results = yield from _fetched(self._pgconn)
            self._pgconn.exit_pipeline_mode()
            whole = True
        finally:
            if not whole:
                # Nobody could read the rest of the answers.
                self._pgconn.finish()
        if begun.status != pq.ExecStatus.COMMAND_OK:
            raise errors.error_from_result(begun)
        if key is not None:
            kept.validate(key, prep, name, results)
        self._check_results(results)
        self._set_results(results)


class LazyAsyncConnection(Lazy, psycopg.AsyncConnection[Any]):
    """A connection for coroutines."""

    def _start_query(self) -> PQGen[None]:
        # Within a `transaction` block BEGIN is already on its way. In a pipeline the driver does not see that and
        # would send a second one. The server would log a warning about it.
        if not self._num_transactions:
            yield from super()._start_query()

    def _exec_command(self, command: Any, *arguments: Any) -> PQGen[Any]:
        # The driver ends a transaction by itself. Behind a pooler the session is cleaned in the same round trip.
        if command not in _ENDS or prepares(self) or self._pipeline:
            return (yield from super()._exec_command(command, *arguments))
        yield from _send(self.pgconn, _AND.join([command, *(as_sent(it).text for it in OF_A_POOLER)]))
        return None

    async def wait(self, gen: Generator[Any, Any, Result], *args: Any, **options: Any) -> Result:
        """Send what waits, then do what the driver does."""
        if (command := self._take()) is not None:
            await super().wait(_send(self.pgconn, command))
        return await super().wait(gen, *args, **options)


def _joined(first: bytes | None, second: bytes | None) -> bytes | None:
    return _AND.join(part for part in (first, second) if part is not None) or None


def _send(connection: pq.abc.PGconn, command: bytes) -> Generator[Any, Any, None]:
    """Send commands outside of any pipeline: before it, if a function begins with one."""
    connection.send_query(command)
    for result in (yield from execute(connection)):
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)


def _fetched(connection: pq.abc.PGconn) -> Generator[Wait, Ready | None, list[pq.abc.PGresult]]:
    """Return the results of the commands in a pipeline."""
    while connection.flush():
        if ((yield Wait.RW) or 0) & Ready.R:
            connection.consume_input()
    results = list[pq.abc.PGresult]()
    while True:
        while connection.is_busy():
            if (yield Wait.R):
                connection.consume_input()
        result = connection.get_result()
        if result is None:
            if connection.status == pq.ConnStatus.BAD:
                break
        elif result.status == pq.ExecStatus.PIPELINE_SYNC:
            return results
        else:
            results.append(result)
    failed = next((it for it in results if it.status == pq.ExecStatus.FATAL_ERROR), None)
    raise (
        psycopg.OperationalError("the connection is lost") if failed is None else errors.error_from_result(failed)
    )


# --- SQLAlchemy ---


class _LazySavepoints:
    """SQLAlchemy's savepoints, on a lazy connection."""

    def do_savepoint(self, connection: Connection, name: str) -> None:
        _driver(connection).begin_step(_begin(name))

    def do_rollback_to_savepoint(self, connection: Connection, name: str) -> None:
        driver, step = _driver(connection), _begin(name)
        if driver.drop_step(step):
            return
        if driver.is_all(step):
            connection.exec_driver_sql("ROLLBACK")
            driver.begin_again()
        else:
            connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {name}")

    def do_release_savepoint(self, connection: Connection, name: str) -> None:
        _driver(connection).keep_step(_begin(name), b"RELEASE SAVEPOINT " + name.encode())


class LazyDialect(_LazySavepoints, PGDialect_psycopg):
    """Psycopg's dialect over a `LazyConnection` or a `LazyAsyncConnection`."""

    supports_statement_cache = True

    @classmethod
    def get_async_dialect_cls(cls, _url: Any) -> type[LazyAsyncDialect]:
        """Return the dialect for coroutines."""
        return LazyAsyncDialect


class LazyAsyncDialect(_LazySavepoints, PGDialectAsync_psycopg):
    """The same for coroutines."""

    supports_statement_cache = True


registry.register("postgresql.jetrelay", __name__, LazyDialect.__name__)
DIALECT: Final = "postgresql+jetrelay://"


def _begin(name: str) -> bytes:
    return b"SAVEPOINT " + name.encode()


def _driver(connection: Connection) -> Lazy:
    driver = connection.connection.driver_connection
    assert isinstance(driver, Lazy)
    return driver
