"""Many inbox rows claimed, renewed and settled at once, for `relay.execution.chunk`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from relay.adapters.postgres import array
from relay.adapters.postgres.claimant import note_of
from relay.adapters.postgres.inbox import claim_many_command, claimed
from relay.adapters.postgres.pool import Pool, query
from relay.adapters.postgres.sql import statement
from relay.domain.disclosure import clean
from relay.domain.policies import Ack, DeadLetter, Disposition, Retry
from relay.ports import ClaimedMessage

#: What a verdict writes: the error, the class of a dead letter, and the delay of a retry.
_Written = tuple[str | None, str | None, timedelta | None, int]


class PostgresChunks:
    """The leases and tokens of PORT-047-002 for whole chunks: the rows of a chunk share one token.

    All methods raise DatabaseUnreachable.
    """

    def __init__(self, pool: Pool, *, ordered: bool = False) -> None:
        self._pool = pool
        self._ordered = ordered

    async def claim(
        self, ids: Sequence[UUID], lease: timedelta
    ) -> tuple[Sequence[ClaimedMessage], Sequence[UUID]]:
        """Claim the messages that are due, free and untried; also returns the ids of those tried before."""
        command = claim_many_command(ids, [], lease, ordered=self._ordered, alone=True)
        since = time.monotonic()
        async with self._pool.connection() as conn:
            # Binary, because a chunk has many bodies.
            cursor = conn.cursor(binary=True, row_factory=dict_row)
            await cursor.execute(statement(command[0]), command[1])
            rows = await cursor.fetchall()
        claims = [claimed(command, row, since) for row in rows if not row["tried"]]
        return claims, [row["message_id"] for row in rows if row["tried"]]

    async def renew(self, claims: Sequence[ClaimedMessage], lease: timedelta) -> bool:
        """Extend the claims that are left. Returns False when none is left."""
        parameters = {"ids": array.of_plain(_ids(claims)), "token": claims[0].token, "lease": lease}
        async with self._pool.connection() as conn:
            cursor = await conn.execute(statement("inbox/renew"), parameters)
            return cursor.rowcount > 0

    async def settle(self, verdicts: Mapping[UUID, Disposition], token: UUID) -> set[UUID]:
        """Record every verdict in one statement; returns the ids whose claim was not lost."""
        written = [_written(verdict) for verdict in verdicts.values()]
        notes = [note_of(verdict) for verdict in verdicts.values()]
        parameters: dict[str, Any] = {"ids": list(verdicts), "token": token, "notes": notes}
        for position, name in enumerate(("errors", "kinds", "delays", "uncounted")):
            parameters[name] = [values[position] for values in written]
        async with self._pool.connection() as conn:
            return {id for (id,) in await query(conn, "inbox/settle_chunk", **parameters)}


def _ids(claims: Sequence[ClaimedMessage]) -> list[UUID]:
    return [claim.row.message_id for claim in claims]


def _written(verdict: Disposition) -> _Written:
    match verdict:
        case Ack():
            return None, None, None, 0
        case DeadLetter(reason, kind):
            return clean(reason), kind.value, None, 0
        case Retry(delay, error, counts):
            return clean(error), None, delay, int(not counts)
