"""What runs now in one context, from the claims of its rows. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from psycopg.rows import dict_row

from relay.adapters.postgres.bounded import CELL, bounded
from relay.adapters.postgres.pool import Source
from relay.domain.claim_tokens import Claimed, read_token
from relay.domain.moments import readable
from relay.domain.running import RunningRow

#: So many rows of each kind are told, and so many unfinished messages are looked at.
MOST: Final = 500
_LOOKED: Final = 5_000
_KINDS: Final = ("inbox/claimed", "tasks/claimed", "schedule/claimed")


async def running(source: Source, context: str, limits: Mapping[str, float]) -> Sequence[RunningRow]:
    """Return what runs. ``limits``: how many seconds a call of a subscription may take.

    Raises DatabaseUnreachable.
    """
    found: list[RunningRow] = []
    asked = {"limit": MOST, "looked": _LOOKED}
    async with source() as conn, conn.cursor(row_factory=dict_row) as cursor:
        for name in _KINDS:
            await cursor.execute(await bounded(conn, name, asked, CELL), asked)
            found += [_running(context, row, limits) for row in await cursor.fetchall()]
    return found


def _running(context: str, row: Mapping[str, Any], limits: Mapping[str, float]) -> RunningRow:
    token = row["claim_token"]
    claim: Claimed | None = read_token(token) if isinstance(token, UUID) else None
    started: datetime | None = readable(row["started_at"])
    return RunningRow(
        context=context,
        kind=row["kind"],
        id=row["id"],
        part=row["part"],
        name=row["name"],
        attempts=row["attempts"],
        since=started or (None if claim is None else claim.at),
        mark=None if claim is None else claim.mark,
        worker=row.get("who"),
        limit=limits.get(row["part"] or "") if row["kind"] == "message" else None,
    )
