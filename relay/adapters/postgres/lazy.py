"""Connections that send a command only when something else is sent after it.

A savepoint for a function that then asks the server nothing costs as much as its message otherwise does, and one
that is kept needs no word where the transaction ends next. Whatever the driver, SQLAlchemy above it or a function
sends goes through `wait`, the first of it included.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors, pq
from psycopg.generators import execute

Result = TypeVar("Result")

_AND: Final = b"; "


class Lazy:
    """What waits to be sent.

    ``before``: goes out ahead of what is sent next; None once it has, or when there is nothing. ``kept``: goes out
    even ahead of that, and need not if the transaction ends.
    """

    before: bytes | None = None
    kept: bytes | None = None

    def begin_step(self, command: bytes) -> None:
        """Have a savepoint set when something is sent in it."""
        self.before = _joined(self.before, command)

    def drop_step(self, command: bytes) -> bool:
        """Forget a savepoint; False if it has been set."""
        waiting = self.before or b""
        if not waiting.endswith(command):
            return False
        self.before = waiting.removesuffix(command).removesuffix(_AND) or None
        return True

    def keep_step(self, command: bytes) -> None:
        """Have a savepoint released, if the transaction goes on."""
        self.kept = _joined(self.kept, command)

    def _take(self) -> bytes | None:
        command = _joined(self.kept, self.before)
        self.kept = self.before = None
        return command


class LazyConnection(Lazy, psycopg.Connection[Any]):
    """A connection for plain functions."""

    def wait(self, gen: Generator[Any, Any, Result], *args: Any, **options: Any) -> Result:
        """Send what waits, then as the driver does."""
        if (command := self._take()) is not None:
            super().wait(_send(self.pgconn, command))
        return super().wait(gen, *args, **options)


class LazyAsyncConnection(Lazy, psycopg.AsyncConnection[Any]):
    """The same for coroutines."""

    async def wait(self, gen: Generator[Any, Any, Result], *args: Any, **options: Any) -> Result:
        """Send what waits, then as the driver does."""
        if (command := self._take()) is not None:
            await super().wait(_send(self.pgconn, command))
        return await super().wait(gen, *args, **options)


def _joined(first: bytes | None, second: bytes | None) -> bytes | None:
    return _AND.join(part for part in (first, second) if part is not None) or None


def _send(connection: pq.abc.PGconn, command: bytes) -> Generator[Any, Any, None]:
    """Send commands by themselves: they come before the pipeline, should a function begin with one."""
    connection.send_query(command)
    for result in (yield from execute(connection)):
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)
