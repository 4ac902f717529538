"""Connections of asyncpg as targets, also those of its pools. The library itself is not imported here."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import cache, partial
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from relay.adapters.postgres.encrypting import encrypted_async
from relay.adapters.postgres.enqueue import Ready, Row, numbered, refusals, statements
from relay.adapters.postgres.unawaited_rows import Queue, fatal
from relay.domain.errors import NoTransaction


class AsyncpgTarget(Protocol):
    """A connection of asyncpg, or one that its pool has lent."""

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:  # noqa: ASYNC109
        """Run a statement."""


def write(target: Any, rows: Sequence[Row]) -> Awaitable[None]:
    """Write ``rows`` when they are awaited. Raises NoTransaction and, awaited, what `refusals` raises."""
    if not rows:
        return Ready(None)
    check(target)
    # A pool lends proxies: the connection behind the proxy does the work.
    return _queue(getattr(target, "_con", target)).promise(rows)


def check(target: Any) -> None:
    """Refuse a connection without a transaction. Raises NoTransaction."""
    if target.is_closed():
        raise NoTransaction("the connection is closed", field="target", hint="open another one")
    if not target.is_in_transaction():
        raise NoTransaction(
            "no transaction is open on the connection",
            field="target",
            hint="use `async with connection.transaction():` around the change and the event",
        )


async def _insert(connection: Any, rows: Sequence[Row]) -> None:
    async def ask(sql: str, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
        text, values = numbered(sql, parameters)
        found: Sequence[Sequence[Any]] = await connection.fetch(text, *values)
        return found

    with refusals(connection):
        for sql, parameters in statements(await encrypted_async(rows, ask)):
            text, values = numbered(sql, parameters)
            await connection.execute(text, *values)


# --- rows that were not awaited ---

_QUEUES: Final[WeakKeyDictionary[Any, Queue]] = WeakKeyDictionary()


def _queue(connection: Any) -> Queue:
    queue = _QUEUES.get(connection)
    if queue is None:
        kind = type(connection)
        queue = Queue(partial(_insert, connection), partial(_guard, connection), partial(_free, connection, kind))
    return queue


def _guard(connection: Any, queue: Queue) -> None:
    _QUEUES[connection] = queue
    kind: Any = type(connection)
    connection.__class__ = _writing_first(kind)


def _free(connection: Any, kind: type) -> None:
    _QUEUES.pop(connection, None)
    connection.__class__ = kind


@cache
def _writing_first(kind: Any) -> Any:
    """The class of a connection while rows wait: it writes them before its next command.

    That command may be a commit, because a block of a transaction executes its commands here, too.
    """

    async def execute(self: Any, query: str, *arguments: Any, **options: Any) -> Any:
        first: Exception | None = None
        try:
            await _QUEUES[self].flush()
        except Exception as error:
            if not fatal(error):
                raise
            # Go on, so that the transaction ends: its commit is a rollback now.
            first = error
        try:
            return await kind.execute(self, query, *arguments, **options)
        finally:
            if first is not None:
                raise first

    return type(kind)(kind.__name__, (kind,), {"__slots__": (), "execute": execute})
