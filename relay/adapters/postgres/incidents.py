"""Incidents in the table dead_letters: recorded, alerted, listed and decided on (DESIGN §7)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from psycopg.rows import dict_row

from relay.adapters.postgres.audit import Audit
from relay.adapters.postgres.pool import Connection
from relay.adapters.postgres.source import Source
from relay.adapters.postgres.sql import statement
from relay.domain.incidents import (
    Candidate,
    Incident,
    IncidentDetail,
    IncidentFilter,
    IncidentStatus,
    Letter,
    RecordedIncident,
)
from relay.domain.operators import Operator
from relay.queries import Page

_COLUMNS: Final = (
    "message_id",
    "occurrence",
    "subscription",
    "subject",
    "stream",
    "stream_seq",
    "event_type",
    "correlation_id",
    "causation_id",
    "reason",
    "attempts",
    "original",
    "letter_stream",
    "letter_seq",
)


@dataclass(slots=True)
class _Alerts:
    """Incidents that are locked while an alert names them. The end of the block commits."""

    conn: Connection
    incidents: Sequence[RecordedIncident]

    async def mark(self) -> None:
        ids = [incident.id for incident in self.incidents]
        await self.conn.execute(statement("incidents/mark_alerted"), {"ids": ids})


@dataclass(slots=True)
class IncidentWrites(Audit):
    """What an operator's transaction does to incidents, and to the keys that their messages block."""

    async def requeue(self, ids: Sequence[int]) -> Sequence[int]:
        cursor = await self.conn.execute(statement("inbox/requeue"), {"ids": list(ids)})
        return [id for (id,) in await cursor.fetchall()]

    async def close(self, ids: Sequence[int], status: IncidentStatus, by: Operator) -> None:
        """Close incidents. A key that a message blocked goes on: with the message if requeued, else without."""
        parameters = {"ids": list(ids), "status": status.value, **self.who(by)}
        await self.conn.execute(statement("incidents/close"), parameters)
        if status is not IncidentStatus.REQUEUED:
            await self.conn.execute(statement("outbox/step_over_heads"), {"ids": list(ids)})
        await self.conn.execute(statement("outbox/release_heads"), {"ids": list(ids)})


@dataclass(slots=True)
class _Change(IncidentWrites):
    """The incidents of one operator's transaction."""

    candidates: Sequence[Candidate]


class PostgresIncidents:
    """Keeps one incident for each time a message dies, however often its dead letter is read."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def record(self, letters: Sequence[Letter]) -> Sequence[RecordedIncident]:
        """Record dead letters; returns the new ones. Repeatable."""
        columns: dict[str, list[Any]] = {name: [getattr(letter, name) for letter in letters] for name in _COLUMNS}
        columns["kind"] = [letter.kind.value for letter in letters]
        columns["headers"] = [json.dumps(dict(letter.headers)) for letter in letters]
        async with self._source() as conn:
            cursor = await conn.execute(statement("incidents/record"), columns)
            return [RecordedIncident(*row) for row in await cursor.fetchall()]

    @asynccontextmanager
    async def unalerted(self, spacing: timedelta) -> AsyncIterator[_Alerts]:
        """Lock the open incidents without an alert; none while the last alert is younger than ``spacing``."""
        async with self._source() as conn, conn.transaction():
            cursor = await conn.execute(statement("incidents/alert_due"), {"spacing": spacing})
            if await cursor.fetchone() != (True,):
                yield _Alerts(conn, [])
                return
            cursor = await conn.execute(statement("incidents/unalerted"))
            yield _Alerts(conn, [RecordedIncident(*row) for row in await cursor.fetchall()])

    async def find(self, wanted: IncidentFilter, limit: int) -> Page[Incident]:
        """See the reader."""
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement("incidents/incidents"), _parameters(wanted, limit))
            rows = await cursor.fetchall()
        total = rows[0]["total"] if rows else 0
        return Page([_incident(row) for row in rows], total)

    async def get(self, id: int) -> IncidentDetail | None:
        """See the reader."""
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement("incidents/incident"), {"id": id})
            row = await cursor.fetchone()
            await cursor.execute(statement("incidents/history"), {"id": id})
            history = await cursor.fetchall()
        if row is None:
            return None
        return IncidentDetail(_incident(row), row["headers"], row["original"], tuple(history))

    def change(self, ids: Sequence[int]) -> AbstractAsyncContextManager[_Change]:
        return self._change(ids)

    @asynccontextmanager
    async def _change(self, ids: Sequence[int]) -> AsyncIterator[_Change]:
        async with self._source() as conn, conn.transaction():
            cursor = await conn.execute(statement("incidents/lock"), {"ids": list(ids)})
            rows = await cursor.fetchall()
            yield _Change(conn, [Candidate(id, IncidentStatus(status), *rest) for id, status, *rest in rows])


def _parameters(wanted: IncidentFilter, limit: int) -> dict[str, Any]:
    return {
        "statuses": [status.value for status in wanted.statuses] or None,
        "kinds": [kind.value for kind in wanted.kinds] or None,
        "subscription": wanted.subscription,
        "event_type": wanted.event_type,
        "reason": wanted.reason,
        "since": wanted.since,
        "message_id": wanted.message_id,
        "correlation_id": wanted.correlation_id,
        "limit": limit,
    }


def _incident(row: Mapping[str, Any]) -> Incident:
    return Incident(**{name: row[name] for name in Incident.__dataclass_fields__})
