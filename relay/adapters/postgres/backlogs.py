"""The read models of what waits (SDS-047 §5), one per context's database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from psycopg.rows import class_row

from relay.adapters.postgres.controls import controls_in
from relay.adapters.postgres.pool import Connection, Source, query
from relay.adapters.postgres.sql import statement
from relay.domain.backlogs import (
    MAX_COUNTED_ROWS,
    AwayHandler,
    Backlogs,
    Brake,
    FleetSessions,
    FullInbox,
    InboxBacklog,
    OutboxBacklog,
    SubscriptionBacklog,
    TaskBacklog,
    Waiting,
)
from relay.domain.controls import Control
from relay.domain.history import Level, Of
from relay.domain.identity import Identity
from relay.domain.lag import DueCount, TablesLag

Row = TypeVar("Row")
Table = TypeVar("Table", OutboxBacklog, InboxBacklog)


class PostgresBacklogReader:
    """The read model of one context. It takes no locks. ``counted``: up to so many rows are counted.

    Each call reads one snapshot. All raise DatabaseUnreachable, and SchemaMissing if the database is not migrated.
    """

    def __init__(self, source: Source, counted: int = MAX_COUNTED_ROWS) -> None:
        self._source = source
        self._counted = counted

    async def outbox_backlog(self) -> OutboxBacklog:
        """QRY-050: what is not published."""
        async with self._source() as conn:
            return await self._table(conn, "outbox", OutboxBacklog)

    async def still_waiting(self, ids: Sequence[str]) -> int:
        """How many of these events are to be published. Dead events do not count."""
        rows = [Identity.of(id).uuid for id in ids]
        async with self._source() as conn:
            [(count,)] = await query(conn, "outbox/still_waiting", rows=rows, texts=list(ids))
        return int(count)

    async def inbox_backlog(self) -> InboxBacklog:
        """QRY-051: what is not processed."""
        async with self._source() as conn:
            return await self._table(conn, "inbox", InboxBacklog)

    async def brake(self) -> Brake:
        """Return what a full outbox does to its producers now."""
        async with self._source() as conn:
            return await _one(conn, "schedule/brake", Brake)

    async def full_inboxes(self, limits: Mapping[str, int]) -> Sequence[FullInbox]:
        """Return the full inboxes, by subscription. ``limits``: the ``max_inbox`` of each subscription."""
        found = []
        async with self._source() as conn:
            for name, most in limits.items():
                [(count,)] = await query(conn, "inbox/unfinished", subscription=name, limit=most)
                found.append(FullInbox(name, count, most))
        return [it for it in found if it.shown]

    async def incidents(self) -> Sequence[Waiting]:
        """Return the open incidents, by subscription and class. One that is snoozed is not open."""
        async with self._source() as conn:
            return await _all(conn, "incidents/open", Waiting)

    async def away(self) -> Sequence[AwayHandler]:
        """Return the handlers that are away, the longest first."""
        async with self._source() as conn:
            return await _all(conn, "circuits/away", AwayHandler)

    async def controls(self) -> Sequence[Control]:
        """Return what is paused or limited."""
        async with self._source() as conn:
            return await controls_in(conn)

    async def lag(self, subscriptions: Sequence[str], *, dead_head_blocks: bool) -> TablesLag:
        """Return what is due, counted up to ``counted``. ``dead_head_blocks``: as the publisher's."""
        async with self._source() as conn:
            inbox = await query(conn, "inbox/lag", subscriptions=list(subscriptions), limit=self._counted)
            return TablesLag(
                outbox=DueCount(
                    *(await query(conn, "outbox/lag", dead_head_blocks=dead_head_blocks, limit=self._counted))[0]
                ),
                tasks=DueCount(*(await query(conn, "tasks/lag", limit=self._counted))[0]),
                inbox={name: DueCount(count, age) for name, count, age in inbox},
            )

    async def backlogs(self) -> Backlogs:
        """Return the backlogs for the metrics."""
        async with self._source() as conn:
            [(held,)] = await query(conn, "outbox/held")
            [(overdue,)] = await query(conn, "outbox/overdue", limit=self._counted)
            return Backlogs(
                outbox=await self._table(conn, "outbox", OutboxBacklog),
                held=held,
                overdue=overdue,
                inbox=await self._subscriptions(conn),
                tasks=await _one(conn, "tasks/backlog", TaskBacklog, {"limit": self._counted}),
                incidents=await _all(conn, "incidents/open", Waiting),
                parked=await _all(conn, "inbox/parked_backlog", Waiting),
                brake=await _one(conn, "schedule/brake", Brake),
                away=await _all(conn, "circuits/away", AwayHandler),
                controls=await controls_in(conn),
                sessions=await _one(conn, "server/ours", FleetSessions),
            )

    async def levels(self) -> Sequence[Level]:
        """Return what waits in the outbox, in each subscription and of each type of tasks, for the history."""
        async with self._source() as conn:
            outbox = await self._table(conn, "outbox", OutboxBacklog)
            inbox = {it.subscription: it for it in await self._subscriptions(conn)}
            dead: dict[str, int] = {}
            for it in await _all(conn, "incidents/open", Waiting):
                if it.subscription is not None:
                    dead[it.subscription] = dead.get(it.subscription, 0) + it.count
            tasks = await query(conn, "tasks/levels", limit=self._counted)
        found = [Level(Of.OUTBOX, "", outbox.waiting, outbox.waiting_age_seconds or 0.0, outbox.dead)]
        for name in sorted({*dead, *(it for it in inbox if it is not None)}):
            waits = inbox.get(name)
            count, oldest = (0, 0.0) if waits is None else (waits.count, waits.oldest_age_seconds)
            found.append(Level(Of.SUBSCRIPTION, name, count, oldest, dead.get(name, 0)))
        return [*found, *(Level(Of.TASK, *row) for row in tasks)]

    async def _table(self, conn: Connection, table: str, result: type[Table]) -> Table:
        """Count what is not done in a table. A number beyond the limit is an estimate."""
        found = await _one(conn, f"{table}/backlog", result, {"limit": self._counted})
        if found.count < self._counted:
            return found
        count = await self._estimate(conn, f"{table}/estimate", {})
        stopped = found.dead + getattr(found, "held", 0) + getattr(found, "delayed", 0)
        return replace(found, count=count, waiting=max(0, count - stopped), estimated=True)

    async def _subscriptions(self, conn: Connection) -> Sequence[SubscriptionBacklog]:
        """Count what is not done for each subscription. A number beyond the limit is an estimate."""
        found = await _all(conn, "inbox/backlogs", SubscriptionBacklog, {"limit": self._counted})
        return [
            it
            if it.count < self._counted
            else replace(
                it, count=await self._estimate(conn, "inbox/estimate_of", {"subscription": it.subscription})
            )
            for it in found
        ]

    async def _estimate(self, conn: Connection, name: str, parameters: Mapping[str, Any]) -> int:
        """Return how many rows the planner expects, and at least as many as were counted."""
        [[[plan]]] = await query(conn, name, **parameters)
        return max(self._counted, int(plan["Plan"]["Plan Rows"]))


async def _all(
    conn: Connection, name: str, result: type[Row], parameters: Mapping[str, Any] | None = None
) -> Sequence[Row]:
    async with conn.cursor(row_factory=class_row(result)) as cursor:
        await cursor.execute(statement(name), parameters)
        return await cursor.fetchall()


async def _one(conn: Connection, name: str, result: type[Row], parameters: Mapping[str, Any] | None = None) -> Row:
    [row] = await _all(conn, name, result, parameters)  # an aggregate has exactly one row
    return row
