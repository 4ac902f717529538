"""Connections that send a command only when something else is sent after it.

A savepoint for a function that then asks the server nothing costs as much as its message otherwise does.
Whatever the driver, SQLAlchemy above it or a function sends goes through `wait`, the first of it included.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import psycopg
from psycopg import errors, pq
from psycopg.generators import execute

Result = TypeVar("Result")


class LazyConnection(psycopg.Connection[Any]):
    """``before``: goes out ahead of what is sent next; None once it has, or when there is nothing."""

    before: bytes | None = None

    def wait(self, gen: Generator[Any, Any, Result], *args: Any, **options: Any) -> Result:
        """Send what waits, then as the driver does."""
        if self.before is not None:
            command, self.before = self.before, None
            super().wait(_send(self.pgconn, command))
        return super().wait(gen, *args, **options)


class LazyAsyncConnection(psycopg.AsyncConnection[Any]):
    """The same for coroutines."""

    before: bytes | None = None

    async def wait(self, gen: Generator[Any, Any, Result], *args: Any, **options: Any) -> Result:
        """Send what waits, then as the driver does."""
        if self.before is not None:
            command, self.before = self.before, None
            await super().wait(_send(self.pgconn, command))
        return await super().wait(gen, *args, **options)


def _send(connection: pq.abc.PGconn, command: bytes) -> Generator[Any, Any, None]:
    """Send commands by themselves: they come before the pipeline, should a function begin with one."""
    connection.send_query(command)
    for result in (yield from execute(connection)):
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)
