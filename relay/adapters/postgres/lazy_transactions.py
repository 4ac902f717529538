"""Connections for functions that begin transactions and savepoints late.

BEGIN and SAVEPOINT are sent together with the first statement of the function. Without a statement nothing is
sent, and no RELEASE before a COMMIT. For a function that asks the server nothing, they would double the cost of
its message. Everything that the driver, SQLAlchemy or a function sends goes through `wait`, including the first
command. Engines on top of these connections are made with `DIALECT`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors, pq
from psycopg.abc import PQGen
from psycopg.generators import execute
from sqlalchemy import Connection
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg, PGDialectAsync_psycopg

Result = TypeVar("Result")

_AND: Final = b"; "


class Lazy:
    """Commands that wait to be sent.

    ``before``: sent together with the next command, ahead of it; None when nothing waits. ``kept``: sent ahead of
    ``before``, or dropped if the transaction ends.
    """

    before: bytes | None = None
    kept: bytes | None = None

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

    def keep_step(self, command: bytes) -> None:
        """Release a savepoint, if the transaction goes on."""
        self.kept = _joined(self.kept, command)

    def _take(self) -> bytes | None:
        command = _joined(self.kept, self.before)
        self.kept = self.before = None
        return command


class LazyConnection(Lazy, psycopg.Connection[Any]):
    """A connection for plain functions. While it is ``lent`` they may write, but neither commit nor roll back.

    ``forgotten``: the driver has deallocated every prepared statement, including ours.
    """

    lent = False
    forgotten = False

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

    def wait(self, gen: Generator[Any, Any, Result], *args: Any, **options: Any) -> Result:
        """Send what waits, then do what the driver does."""
        if (command := self._take()) is not None:
            super().wait(_send(self.pgconn, command))
        return super().wait(gen, *args, **options)


class LazyAsyncConnection(Lazy, psycopg.AsyncConnection[Any]):
    """A connection for coroutines."""

    def _start_query(self) -> PQGen[None]:
        # Within a `transaction` block BEGIN is already on its way. In a pipeline the driver does not see that and
        # would send a second one. The server would log a warning about it.
        if not self._num_transactions:
            yield from super()._start_query()

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


# --- SQLAlchemy ---


class _LazySavepoints:
    """SQLAlchemy's savepoints, on a lazy connection."""

    def do_savepoint(self, connection: Connection, name: str) -> None:
        _driver(connection).begin_step(_begin(name))

    def do_rollback_to_savepoint(self, connection: Connection, name: str) -> None:
        if not _driver(connection).drop_step(_begin(name)):
            connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {name}")

    def do_release_savepoint(self, connection: Connection, name: str) -> None:
        driver = _driver(connection)
        if not driver.drop_step(_begin(name)):
            driver.keep_step(b"RELEASE SAVEPOINT " + name.encode())


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
