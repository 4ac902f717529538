"""Replays into an inbox: asked for by operators, carried out by workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from psycopg.rows import dict_row

from relay.adapters.postgres.outbox import KeptPayloads
from relay.adapters.postgres.paging import Row
from relay.adapters.postgres.pool import Source, query
from relay.adapters.postgres.row_operations import audit, who
from relay.adapters.postgres.sql import statement
from relay.domain.large import Reference
from relay.domain.operators import Operator
from relay.domain.replays import Replay, ReplayCounts, ReplayPlace, ReplayRunning, ReplaySource, UnknownReplay
from relay.ports import OutboxRow

#: A worker that is silent for so long has lost its replay to another.
_LEASE: Final = timedelta(seconds=20)


class PostgresReplays:
    """The replays of a context. All methods raise DatabaseUnreachable and SchemaMissing."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def start(self, subscription: str, by: Operator, **asked: Any) -> int:
        """Ask for a replay; returns its number. Raises ReplayRunning if the subscription has one."""
        async with self._source() as conn, conn.transaction():
            rows = await query(conn, "replays/start", subscription=subscription, **asked, **who(by))
            if not rows:
                text = f"a replay of {subscription} is running"
                raise ReplayRunning(text, hint="relay inbox replays shows it; it can be stopped")
            [(id,)] = rows
            await audit(conn, "inbox.replay", [id, subscription], by)
        return int(id)

    async def list(self, limit: int, id: int | None = None) -> Sequence[Row]:
        """The latest replays, the newest first, or the one of this number."""
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement("replays/list"), {"limit": limit, "id": id})
            return await cursor.fetchall()

    async def stop(self, id: int, by: Operator) -> None:
        """Stop a replay; what it has put into the inbox stays there. Raises UnknownReplay if it does not run."""
        async with self._source() as conn, conn.transaction():
            if not await query(conn, "replays/stop", id=id):
                raise UnknownReplay(f"no replay {id} is running", hint="relay inbox replays")
            await audit(conn, "inbox.stop-replay", [id], by)

    # --- by workers ---

    async def take(self, subscriptions: Sequence[str]) -> Replay | None:
        """Claim a replay of these subscriptions that nobody reads now, or None."""
        parameters = {"subscriptions": list(subscriptions), "token": uuid4(), "lease": _LEASE}
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement("replays/take"), parameters)
            row = await cursor.fetchone()
        return None if row is None else Replay(**{**row, "source": ReplaySource(row["source"])})

    async def move(self, replay: Replay, place: ReplayPlace, counts: ReplayCounts) -> bool:
        """Note how far it has come; returns whether to go on: it was not stopped, and the claim holds."""
        values = {**asdict(place), **asdict(counts), "source": place.source.value}
        async with self._source() as conn:
            return bool(
                await query(conn, "replays/move", id=replay.id, token=replay.token, lease=_LEASE, **values)
            )

    async def leave(self, replay: Replay, *, ended: bool, error: str | None = None) -> None:
        """Give the claim back."""
        parameters = {"id": replay.id, "token": replay.token, "ended": ended, "error": error}
        async with self._source() as conn:
            await conn.execute(statement("replays/leave"), parameters)

    async def repeat(self, replay: Replay, ids: Sequence[UUID]) -> int:
        """Have handled messages handled again; returns how many. Those that are archived may be inserted anew."""
        about = {"ids": list(ids), "subscription": replay.subscription}
        async with self._source() as conn, conn.transaction():
            rows = await query(conn, "replays/repeat", asked_at=replay.asked_at, **about)
            await conn.execute(statement("replays/forget_archived"), about)
        return len(rows)


class PublishedEvents:
    """Reads what an outbox has published to a stream. ``kept``: which payloads stay there; None: none."""

    def __init__(self, source: Source, kept: KeptPayloads | None = None) -> None:
        self._source, self._kept = source, kept

    async def between(
        self, stream: str, after: int, before: int, limit: int
    ) -> Sequence[tuple[OutboxRow, int, Any, Reference | None]]:
        """Events that the stream stored between these sequences, with sequence, time, and reference if large."""
        terms = {"stream": stream, "after": after, "before": before, "limit": limit}
        kept = self._kept
        async with self._source() as conn:
            rows = await query(conn, "replays/published", **terms, kept=None if kept is None else kept.limit)
        found = []
        for *values, seq, at, size, digest in rows:
            row, reference = OutboxRow(*values), None
            if kept is not None and digest is not None:
                reference = kept.reference(row.id, size, digest)
                row = row._replace(payload=reference.payload)
            found.append((row, seq, at, reference))
        return found
