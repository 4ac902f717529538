"""Statements of ours in few round trips: prepared once on a connection, sent together, answered together.

This is what a message costs most often, so it speaks to libpq itself: psycopg's own pipeline, with a cursor
for each statement, takes three times as long in Python.
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
BEGIN: Final[Command] = ("begin", {})
COMMIT: Final[Command] = ("commit", {})
ROLLBACK: Final[Command] = ("rollback", {})
#: Ends what came before: outside of a transaction that is a commit, and an error does not reach what comes after.
SYNC: Final[Command] = ("", {})


class LentConnection(LazyConnection):
    """A connection that can be lent: who has it may write, and neither commit nor roll back.

    ``forgotten``: the driver has had the server forget every prepared statement, so ours too.
    """

    lent = False
    forgotten = False

    def commit(self) -> None:
        """Refuse, while it is lent."""
        self._refuse("commit")
        super().commit()

    def rollback(self) -> None:
        """Refuse, while it is lent."""
        self._refuse("rollback")
        super().rollback()

    def _refuse(self, what: str) -> None:
        if self.lent:
            raise psycopg.ProgrammingError(f"{what}() is not yours: the transaction ends when the function has")

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        self.forgotten = self.forgotten or name is None
        return super()._deallocate(name)


class Pipeline:
    """One connection and what is prepared on it. Used by one thread at a time."""

    def __init__(self, connection: LentConnection) -> None:
        self.connection = connection
        self._libpq: PGconn = connection.pgconn
        self._prepared: set[str] = set()
        self._input, self._room = select.poll(), select.poll()
        self._input.register(self._libpq.socket, select.POLLIN)
        self._room.register(self._libpq.socket, select.POLLOUT)

    @property
    def usable(self) -> bool:
        """Whether the connection is open and the server has said nothing while it lay idle: as a rule, farewell.

        A look at the socket; asking the server would cost every message a round trip.
        """
        return not self.connection.closed and not self._input.poll(0)

    @property
    def idle(self) -> bool:
        """Whether the connection is open and no transaction is."""
        return self._libpq.transaction_status == TransactionStatus.IDLE

    def run(self, *commands: Command) -> list[PGresult]:
        """Run statements in one round trip. The first that fails keeps those behind it from running.

        Raises psycopg's errors. When the server is lost on the way, nobody knows what it has done.
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
        """What a statement has returned."""
        return rows(result, self.connection)

    def _send(self, commands: Sequence[Command]) -> list[str | None]:
        """Send statements; of each result that will come: which statement it prepares, if that is all it does."""
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
        """Yield the answers up to the end of the round trip. Raises psycopg.OperationalError."""
        while syncs:
            # Each of these looks lets another thread have its turn, so there are as few of them as can be.
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
                # The end of that statement's results, which is known with them.
                if result.status in GOOD:
                    self._libpq.get_result()


def as_sent(command: Command) -> tuple[bytes, bytes, list[bytes | None]]:
    """A statement as libpq takes it: what it is called on a connection, its text, and its values."""
    name, values = command
    text, order = _positional(name)
    return _name(name), text, [_text(values[key]) for key in order]


def rows(
    result: PGresult, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
) -> list[dict[str, Any]]:
    """What a statement has returned."""
    names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
    reader = Transformer(connection)
    reader.set_pgresult(result)
    return [dict(zip(names, row, strict=True)) for row in reader.load_rows(0, result.ntuples, tuple)]


@cache
def _name(name: str) -> bytes:
    return f"jetrelay_{name}".encode()


@cache
def _positional(name: str) -> tuple[bytes, list[str]]:
    """A statement as libpq takes it, and the names of its parameters in order."""
    text = statement(name)
    order = list(dict.fromkeys(_PARAMETER.findall(text)))
    return _PARAMETER.sub(lambda found: f"${order.index(found[1]) + 1}", text).encode(), order


def _text(value: Any) -> bytes | None:
    """A value as PostgreSQL reads it; the statement says what it is."""
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
