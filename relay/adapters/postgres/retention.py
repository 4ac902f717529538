"""What is there of each table and of the archive, for the rules of retention. Reads through indexes only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from relay.adapters.postgres.pool import Source, query

#: So many batches of the archive are added up: two thousand million rows.
_BATCHES: Final = 100_000


@dataclass(frozen=True, slots=True)
class TableHolding:
    """How much there is. None: nobody knows. ``oldest_at``: since when the oldest could go, or is there."""

    rows: int | None = None
    size: int | None = None
    oldest_at: datetime | None = None


async def held(
    source: Source, tables: Collection[str]
) -> tuple[Mapping[str, TableHolding], Mapping[str, TableHolding]]:
    """What is there of tables, and of each kind of the archive. Raises DatabaseUnreachable and SchemaMissing."""
    async with source() as conn:
        sizes = await query(conn, "server/sizes", tables=list(tables))
        oldest = dict(await query(conn, "server/oldest"))
        batches = await query(conn, "archive/kept", limit=_BATCHES)
    of_tables = {name: TableHolding(rows, size, oldest.get(name)) for name, rows, size in sizes}
    return of_tables, {kind: TableHolding(rows, size, at) for kind, rows, size, at in batches}
