"""Rows that an asynchronous connection writes when its caller awaits them, or else before its next command.

A forgotten ``await`` would commit a change and lose its event. So rows that were added, but not awaited yet, wait
in a queue of the connection. Before its next command, which may be the commit, the connection writes these rows.
If that fails, nothing is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Final, TypeAlias

from relay.adapters.postgres.enqueue import Row, sqlstate

Insert: TypeAlias = Callable[[Sequence[Row]], Awaitable[None]]

#: The transaction has failed before. It cannot commit, so its rows need not be written.
_ABORTED: Final = "25P02"


class UnawaitedRows:
    """Rows to be written; await them. Nothing is lost if that is forgotten."""

    def __init__(self, queue: Queue, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.begun = False
        self.ended = asyncio.Event()
        self.error: BaseException | None = None
        self._queue = queue

    def __await__(self) -> Generator[Any, Any, None]:
        return self._queue.settle(self).__await__()


class Queue:
    """The rows of one connection. ``guard`` is called when the first row waits, ``free`` when none waits any more.

    Between the two, the connection calls `flush` before its next command.
    """

    def __init__(self, insert: Insert, guard: Callable[[Queue], None], free: Callable[[], None]) -> None:
        self._insert, self._guard, self._free = insert, guard, free
        self._waiting: list[UnawaitedRows] = []

    def promise(self, rows: Sequence[Row]) -> UnawaitedRows:
        """Keep rows until they are awaited, or until `flush`."""
        promised = UnawaitedRows(self, rows)
        if not self._waiting:
            self._guard(self)
        self._waiting.append(promised)
        return promised

    async def settle(self, promised: UnawaitedRows) -> None:
        """Write rows, and those before them. Raises what the insert raises."""
        while promised in self._waiting:
            await self._write(self._waiting.pop(0))
        if not promised.begun:  # dropped with a transaction that had failed
            await self._write(promised)
        await promised.ended.wait()
        if promised.error is not None:
            raise promised.error

    async def flush(self) -> None:
        """Write the rows that were not awaited. Raises what the insert raises, and drops the rest.

        If it is cancelled, the rows that it has not written stay for the next `flush`: the transaction may go on.
        """
        try:
            while self._waiting:
                await self._flush_first()
        except Exception as error:
            self.drop()
            if sqlstate(error) != _ABORTED:
                raise

    async def _flush_first(self) -> None:
        promised = self._waiting.pop(0)
        try:
            await self._write(promised)
        except asyncio.CancelledError:
            promised.begun, promised.error = False, None
            promised.ended.clear()
            if not self._waiting:
                self._guard(self)
            self._waiting.insert(0, promised)
            raise

    def drop(self) -> None:
        """Drop the waiting rows: their transaction or savepoint is rolled back."""
        if self._waiting:
            self._waiting.clear()
            self._free()

    async def _write(self, promised: UnawaitedRows) -> None:
        """Write rows on the unguarded connection, so that it does not call `flush`."""
        self._free()
        promised.begun = True
        try:
            await self._insert(promised.rows)
        except BaseException as error:
            promised.error = error
            raise
        finally:
            promised.ended.set()
            if self._waiting:
                self._guard(self)


def fatal(error: BaseException) -> bool:
    """Whether PostgreSQL itself refused, so that the transaction cannot be committed any more."""
    return sqlstate(error) is not None
