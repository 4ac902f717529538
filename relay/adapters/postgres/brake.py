"""How full an outbox is, and its brake, in the row that also says whether producers send hints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from psycopg.errors import QueryCanceled

from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.sql import statement
from relay.domain.backpressure import OutboxLimits, Pressure
from relay.domain.errors import DatabaseUnreachable

Ask = Callable[[str, Mapping[str, Any]], Awaitable[Sequence[Mapping[str, Any]]]]


class ProducerBrake:
    """The brake of one context. The decision is made elsewhere. ``ask`` asks the database, with a time limit."""

    def __init__(self, pool: Pool, ask: Ask) -> None:
        self._pool, self._ask = pool, ask

    async def pressure(self, limits: OutboxLimits, soon: timedelta, *, dead_head_blocks: bool) -> Pressure | None:
        """Return what waits, counted until it is over the limit; None if that takes too long.

        ``soon``: for how long a failed event waits at most. Raises DatabaseUnreachable and SchemaMissing.
        """
        limit = 1 if limits.above is None else limits.above + 1
        parameters = {"limit": limit, "soon": soon, "dead_head_blocks": dead_head_blocks}
        try:
            [row] = await self._ask("outbox/pressure", parameters)
        except DatabaseUnreachable as error:
            if not isinstance(error.__cause__, QueryCanceled):
                raise
            return None
        return Pressure(**row)

    async def set(self, limits: OutboxLimits, reason: str, hold: timedelta) -> None:
        """Begin to brake producers. The brake ends by itself after ``hold``, unless this is called again."""
        told = {"action": limits.action, "delay": limits.delay, "reason": reason, "hold": hold}
        await tell(self._pool, "schedule/set_brake", **told)

    async def keep(self, hold: timedelta) -> None:
        """Prolong the brake for ``hold``. Does nothing if it has ended."""
        await tell(self._pool, "schedule/keep_brake", hold=hold)

    async def release(self) -> None:
        """End the brake."""
        await tell(self._pool, "schedule/release_brake")


async def tell(pool: Pool, name: str, **parameters: Any) -> Sequence[Any]:
    """Run a statement that changes the brake, and return its rows. If a crash undoes it, it runs again."""
    async with pool.connection() as conn, conn.transaction():
        await conn.execute("SET LOCAL synchronous_commit = off")
        cursor = await conn.execute(statement(name), parameters)
        return await cursor.fetchall() if cursor.description else ()
