"""Our own statements in few round trips: prepared once on a connection, then sent and answered together.

Every message passes through here, so this calls libpq directly. psycopg's own pipeline, with a cursor for each
statement, takes three times as long in Python.
"""

from __future__ import annotations

import re
import select
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final, TypeAlias
from uuid import UUID

import psycopg
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from relay.adapters.postgres.lazy import LazyConnection
from relay.adapters.postgres.sql import statement

#: A statement's name in ``sql/`` and its values.
Command: TypeAlias = tuple[str, Mapping[str, Any]]

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")
GOOD: Final = {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK}
BEGIN: Final[Command] = ("session/begin", {})
COMMIT: Final[Command] = ("session/commit", {})
ROLLBACK: Final[Command] = ("session/rollback", {})
#: Ends the statements before it. Outside of a transaction it commits them. An error does not affect later ones.
SYNC: Final[Command] = ("", {})


class LentConnection(LazyConnection):
    """A connection that can be lent: the borrower may write, but neither commit nor roll back.

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
            raise psycopg.ProgrammingError(f"{what}() is not yours: the transaction ends when the function has")

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        self.forgotten = self.forgotten or name is None
        return super()._deallocate(name)


class Pipeline:
    """One connection and its prepared statements. Only one thread may use it at a time."""

    def __init__(self, connection: LentConnection) -> None:
        self.connection = connection
        self._libpq: PGconn = connection.pgconn
        self._prepared: set[str] = set()
        self._input, self._room = select.poll(), select.poll()
        self._input.register(self._libpq.socket, select.POLLIN)
        self._room.register(self._libpq.socket, select.POLLOUT)

    @property
    def usable(self) -> bool:
        """Whether the connection is open and has no input. Input while idle usually means the server closed it.

        This only looks at the socket. To ask the server would cost a round trip for every message.
        """
        return not self.connection.closed and not self._input.poll(0)

    @property
    def idle(self) -> bool:
        """Whether the connection is open without an open transaction."""
        return self._libpq.transaction_status == TransactionStatus.IDLE

    def run(self, *commands: Command) -> list[PGresult]:
        """Run statements in one round trip. When one fails, those after it do not run.

        Raises psycopg's errors. If the connection is lost on the way, it is unknown what the server has done.
        """
        if self.connection.forgotten:
            self._prepared.clear()
            self.connection.forgotten = False
        self._libpq.enter_pipeline_mode()
        try:
            sent = self._send(commands)
            results = list(self._results(1 + commands.count(SYNC)))
        finally:
            if self._libpq.status == ConnStatus.OK:
                self._libpq.exit_pipeline_mode()
        for result, prepares in zip(results, sent, strict=True):
            if result.status not in GOOD:
                raise self._failed(result)
            if prepares is not None:
                self._prepared.add(prepares)
        return [result for result, prepares in zip(results, sent, strict=True) if prepares is None]

    def _failed(self, result: PGresult) -> psycopg.Error:
        error = error_from_result(result)
        if isinstance(error, psycopg.errors.InvalidSqlStatementName):
            self._prepared.clear()
        return error

    def rows(self, result: PGresult) -> list[dict[str, Any]]:
        """Return the rows of a statement's result."""
        return rows(result, self.connection)

    def _send(self, commands: Sequence[Command]) -> list[str | None]:
        """Send statements. Returns for each coming result the statement it prepares, or None if it runs one."""
        sent: list[str | None] = []
        for name, values in commands:
            if not name:
                self._libpq.pipeline_sync()
                continue
            prepared, text, parameters = as_sent((name, values))
            if name not in self._prepared and name not in sent:
                self._libpq.send_prepare(prepared, text)
                sent.append(name)
            self._libpq.send_query_prepared(prepared, parameters)
            sent.append(None)
        self._libpq.pipeline_sync()
        while self._libpq.flush():
            self._room.poll()
        return sent

    def _results(self, syncs: int) -> Iterator[PGresult]:
        """Yield the results up to the end of the round trip. Raises psycopg.OperationalError."""
        while syncs:
            # Each of these polls may give another thread its turn, so there are as few as possible.
            while self._libpq.is_busy():
                self._input.poll()
                self._libpq.consume_input()
            result = self._libpq.get_result()
            if result is None:
                if self._libpq.status == ConnStatus.BAD:
                    raise psycopg.OperationalError("the connection is lost")
            elif result.status == ExecStatus.PIPELINE_SYNC:
                syncs -= 1
            else:
                yield result
                # The None that ends this statement's results has arrived with them.
                if result.status in GOOD:
                    self._libpq.get_result()


def as_sent(command: Command) -> tuple[bytes, bytes, list[bytes | None]]:
    """Return a statement as libpq takes it: its prepared name, its text, and its values."""
    name, values = command
    text, order = _positional(name)
    return _name(name), text, [_text(values[key]) for key in order]


def rows(
    result: PGresult, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
) -> list[dict[str, Any]]:
    """Return the rows of a result as dictionaries."""
    names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
    reader = Transformer(connection)
    reader.set_pgresult(result)
    return [dict(zip(names, row, strict=True)) for row in reader.load_rows(0, result.ntuples, tuple)]


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
