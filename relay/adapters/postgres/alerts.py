"""The tables alerts and alert_conditions: what must be told, and what has been."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from relay.adapters.postgres.pool import Connection, Source, query
from relay.adapters.postgres.sql import statement
from relay.domain.alerts import AlertClass, AlertState, Cause, Condition

#: How many causes an alert counts at most. More make a further alert.
_MAX_CAUSES: Final = 20_000


@dataclass(slots=True)
class _Unsent:
    """See `relay.commands.alerts.Unsent`."""

    conn: Connection
    causes: Sequence[Cause]

    async def told(self, ids: Collection[int]) -> None:
        await self.conn.execute(statement("alerts/mark_told"), {"ids": list(ids)})

    async def sent(self, ids: Collection[int], *, posted: bool) -> None:
        await self.conn.execute(statement("alerts/mark_sent"), {"ids": list(ids), "posted": posted})

    async def recent(self) -> tuple[int, dict[tuple[AlertClass, str, str], float]]:
        rows = await query(self.conn, "alerts/recent")
        ago = {(AlertClass(kind), subject_type, subject): age for kind, subject_type, subject, age, _ in rows}
        return sum(count for *_, count in rows), ago


class PostgresAlerts:
    """Keeps the causes of alerts until they are sent. One sender at a time holds them, by an advisory lock.

    The lock holds no row: operators decide on a dead letter while its alert is on its way. ``waiting``: a cheaper
    way to ask whether any cause waits.
    """

    def __init__(self, source: Source, waiting: Callable[[], Awaitable[bool]] | None = None) -> None:
        self._source, self._waiting = source, waiting

    async def waiting(self) -> bool:
        """See `relay.commands.alerts.AlertRecords`, as for `unsent`."""
        if self._waiting is not None:
            return await self._waiting()
        async with self._source() as conn:
            [(waiting,)] = await query(conn, "alerts/waiting")
        return bool(waiting)

    @asynccontextmanager
    async def unsent(self) -> AsyncIterator[_Unsent | None]:
        async with self._source() as conn:
            # A transaction of its own: it locks dead letters.
            async with conn.transaction():
                await conn.execute(statement("alerts/collect"), {"limit": _MAX_CAUSES})
            async with conn.transaction():
                [(ours,)] = await query(conn, "alerts/lock")
                if not ours:
                    yield None
                    return
                rows = await query(conn, "alerts/unsent", limit=_MAX_CAUSES)
                yield _Unsent(conn, [_cause(*row) for row in rows])

    async def observe(self, conditions: Sequence[Condition], looked: Sequence[str], repeat: timedelta) -> None:
        """Compare the conditions of now with those that are known: new ones, lasting ones and ended ones alert.

        ``looked``: the places that answered. The conditions of others are left as they are. ``repeat``: after
        this time a condition that lasts alerts again.
        """
        parameters = {
            "codes": [it.code for it in conditions],
            "places": [it.place for it in conditions],
            "subject_types": [it.subject_type for it in conditions],
            "subjects": [it.subject for it in conditions],
            "reasons": [it.reason for it in conditions],
            "classes": [it.kind.value for it in conditions],
            "values": [it.value for it in conditions],
            "looked": list(looked),
            "repeat": repeat,
        }
        async with self._source() as conn:
            await conn.execute(statement("alerts/observe"), parameters)


def _cause(id: int, kind: str, state: str, subject_type: str, subject: str, *more: object) -> Cause:
    reason, since, about, told, is_open = more
    return Cause(
        id=id,
        kind=AlertClass(kind),
        state=AlertState(state),
        subject_type=subject_type,
        subject=subject,
        reason=reason,  # type: ignore[arg-type]
        since=since,  # type: ignore[arg-type]
        about=about,  # type: ignore[arg-type]
        told=bool(told),
        open=bool(is_open),
    )
