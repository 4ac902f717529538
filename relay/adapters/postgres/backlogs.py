"""The read models of what waits (SDS-047 §5), one per context's database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from psycopg.rows import class_row

from relay.adapters.postgres.pool import Connection, Source, query
from relay.adapters.postgres.sql import statement
from relay.domain.backlogs import (
    Backlogs,
    Brake,
    Held,
    InboxBacklog,
    OutboxBacklog,
    Overdue,
    SubscriptionBacklog,
    TaskBacklog,
    Waiting,
)
from relay.domain.lag import MAX_COUNTED_ROWS, Due, TablesLag

Row = TypeVar("Row")


class PostgresBacklogReader:
    """The read model of one context. It takes no locks.

    Each call reads one snapshot. All raise DatabaseUnreachable, and SchemaMissing if the database is not migrated.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    async def outbox_backlog(self) -> OutboxBacklog:
        """QRY-050: what is not published."""
        async with self._source() as conn:
            return await _one(conn, "outbox/backlog", OutboxBacklog)

    async def inbox_backlog(self) -> InboxBacklog:
        """QRY-051: what is not processed."""
        async with self._source() as conn:
            return await _one(conn, "inbox/backlog", InboxBacklog)

    async def brake(self) -> Brake:
        """Return what producers are told of a full outbox."""
        async with self._source() as conn:
            return await _one(conn, "schedule/brake", Brake)

    async def lag(self, subscriptions: Sequence[str], *, dead_head_blocks: bool) -> TablesLag:
        """Return what is due, counted up to `MAX_COUNTED_ROWS`. ``dead_head_blocks``: as the publisher's."""
        limit = {"limit": MAX_COUNTED_ROWS}
        async with self._source() as conn:
            inbox = await query(conn, "inbox/lag", subscriptions=list(subscriptions), **limit)
            return TablesLag(
                outbox=Due(*(await query(conn, "outbox/lag", dead_head_blocks=dead_head_blocks, **limit))[0]),
                tasks=Due(*(await query(conn, "tasks/lag", **limit))[0]),
                inbox={name: Due(count, age) for name, count, age in inbox},
            )

    async def backlogs(self) -> Backlogs:
        """Return the backlogs for the metrics."""
        async with self._source() as conn:
            return Backlogs(
                outbox=await _one(conn, "outbox/backlog", OutboxBacklog),
                held=await _one(conn, "outbox/held", Held),
                overdue=await _one(conn, "outbox/overdue", Overdue),
                inbox=await _all(conn, "inbox/backlogs", SubscriptionBacklog),
                tasks=await _one(conn, "tasks/backlog", TaskBacklog),
                incidents=await _all(conn, "incidents/open", Waiting),
                parked=await _all(conn, "inbox/parked_backlog", Waiting),
                brake=await _one(conn, "schedule/brake", Brake),
            )


async def _all(conn: Connection, name: str, result: type[Row]) -> Sequence[Row]:
    async with conn.cursor(row_factory=class_row(result)) as cursor:
        await cursor.execute(statement(name))
        return await cursor.fetchall()


async def _one(conn: Connection, name: str, result: type[Row]) -> Row:
    [row] = await _all(conn, name, result)  # an aggregate has exactly one row
    return row
