"""The audit log as operators read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.rows import dict_row

from relay.adapters.postgres.bounded import CELL, bounded
from relay.adapters.postgres.paging import Row
from relay.adapters.postgres.pool import Source


class Actions:
    """The audit log. Raises DatabaseUnreachable and SchemaMissing."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def find(self, wanted: Mapping[str, Any]) -> Sequence[Row]:
        """What operators did, the newest first. ``wanted``: the parameters of its statement."""
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(await bounded(conn, "session/actions", wanted, CELL), wanted)
            return await cursor.fetchall()
