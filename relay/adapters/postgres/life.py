"""The rows of one context that belong to a chain of messages. Reads only: no payload, and beginnings of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from psycopg.rows import dict_row

from relay.adapters.postgres.bounded import LIFE, bounded
from relay.adapters.postgres.pool import Source
from relay.domain.life import LifeSearch

#: A row by the names of its columns.
Row: TypeAlias = Mapping[str, Any]
#: Rows by their kind.
Rows: TypeAlias = Mapping[str, Sequence[Row]]

KINDS: Final = ("events", "messages", "incidents", "tasks", "runs", "actions")
#: How many rows of a kind are read. A correlation may join more than a person can look at.
LIMIT: Final = 500


async def read(source: Source, wanted: LifeSearch) -> Rows:
    """Read what belongs to ``wanted``, in one snapshot. Raises DatabaseUnreachable and SchemaMissing."""
    stream, seq = wanted.place or (None, None)
    parameters = {
        "ids": list(wanted.ids),
        "correlations": list(wanted.correlations),
        "texts": list(wanted.texts),
        "causes": list(wanted.causes),
        "stream": stream,
        "seq": seq,
        "incident": wanted.incident,
        "limit": LIMIT,
    }
    found = {}
    async with source() as conn, conn.transaction():
        await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        async with conn.cursor(row_factory=dict_row) as cursor:
            for kind in KINDS:
                # Planned for what is asked: a plan for any number of ids might read a whole table.
                await cursor.execute(
                    await bounded(conn, f"life/{kind}", parameters, LIFE), parameters, prepare=False
                )
                found[kind] = await cursor.fetchall()
    return found
