"""PostgresOutboxAdapter: PORT-047-001 on outbox_events."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg

from relay.adapters.postgres import array
from relay.adapters.postgres.floors import NO_LANE, NONE, Floors
from relay.adapters.postgres.pool import Connection, Pool, connection
from relay.adapters.postgres.sql import statement
from relay.domain.policies import Published
from relay.ports import OutboxRow, PublishFailure


@dataclass(slots=True)
class _Claim:
    """The rows of one open claim transaction, and the writes that settle them."""

    conn: Connection
    lanes: Sequence[int] = ()
    rows: Sequence[OutboxRow] = field(default_factory=list)
    busy: Collection[int] = ()
    more: bool = False

    async def mark_published(self, acks: Mapping[str, Published]) -> None:
        if acks:
            await self.conn.execute(
                statement("mark_published"),
                {
                    "ids": array.of_plain(acks),
                    "streams": array.of_plain(ack.stream for ack in acks.values()),
                    "seqs": array.of_plain(ack.seq for ack in acks.values()),
                    "duplicates": array.of_plain(ack.duplicate for ack in acks.values()),
                },
            )

    async def increment_attempts(self, failures: Sequence[PublishFailure]) -> None:
        if failures:
            await self.conn.execute(
                statement("record_publish_failures"),
                {
                    "ids": [failure.id for failure in failures],
                    "errors": [failure.error[:2_000] for failure in failures],
                    "delays": [failure.delay for failure in failures],
                },
            )


class PostgresOutboxAdapter:
    """Claims by row locks under lane locks; the transaction is the lease (DESIGN §5).

    ``dead_head_blocks``: whether a dead event holds back the later ones of its key.
    """

    def __init__(self, pool: Pool, *, dead_head_blocks: bool = False) -> None:
        self._pool = pool
        self._dead_head_blocks = dead_head_blocks
        self._floors = Floors()

    def find_unpublished(self, lanes: Sequence[int], limit: int) -> AbstractAsyncContextManager[_Claim]:
        return self._find_unpublished(lanes, limit)

    @asynccontextmanager
    async def _find_unpublished(self, lanes: Sequence[int], limit: int) -> AsyncIterator[_Claim]:
        async with _claim(self._pool) as claim:
            found = await self._take(claim, lanes, limit)
            if found is None:
                claim.more = True
            else:
                # Behind an event come its lane, the share of a lane, and how often events were reopened.
                claim.rows = [OutboxRow._make(row[:-3]) for row in found]
                claim.busy = Counter(row[-3] for row in found)
                claim.more = len(found) >= limit or any(claim.busy[row[-3]] >= row[-2] for row in found)
            yield claim

    async def _take(self, claim: _Claim, lanes: Sequence[int], limit: int) -> Sequence[tuple[Any, ...]] | None:
        """Lock lanes and claim what is ready in them; None while the way there is too far."""
        locked = await (await claim.conn.execute(statement("lock_lanes"), {"lanes": list(lanes)})).fetchall()
        claim.lanes = [lane for lane, *_ in locked if lane is not None]
        _, *epoch = locked[0]
        floors = await self._floors.find(claim.conn, [*claim.lanes, NO_LANE], tuple(epoch))
        if floors is None:
            return None
        found = await self._claim_from(floors, claim, limit)
        if found and found[0][-1] != epoch[0]:
            # What has come back just now may lie below the floors, and before what was found.
            found = await self._claim_from([NONE] * len(floors), claim, limit)
        return found

    async def _claim_from(self, floors: Sequence[int], claim: _Claim, limit: int) -> Sequence[tuple[Any, ...]]:
        terms = {
            "lanes": claim.lanes,
            "floors": floors,
            "limit": limit,
            "dead_head_blocks": self._dead_head_blocks,
        }
        begun = time.monotonic()
        try:
            cursor = await claim.conn.execute(statement("claim_outbox"), terms)
        finally:
            # One that did not end in its time needs them most.
            self._floors.note(time.monotonic() - begun)
        return await cursor.fetchall()

    def find_one(self, event_id: UUID) -> AbstractAsyncContextManager[_Claim]:
        return self._find_one(event_id)

    @asynccontextmanager
    async def _find_one(self, event_id: UUID) -> AsyncIterator[_Claim]:
        async with _claim(self._pool) as claim:
            await claim.conn.execute(statement("lock_lane_of_event"), {"id": event_id})
            cursor = await claim.conn.execute(
                statement("claim_event"), {"id": event_id, "dead_head_blocks": self._dead_head_blocks}
            )
            claim.rows = [OutboxRow._make(row) for row in await cursor.fetchall()]
            yield claim


@asynccontextmanager
async def _claim(pool: Pool) -> AsyncIterator[_Claim]:
    """Open the claim transaction, commit it on the way out, roll it back on an exception."""
    async with connection(pool) as conn:
        await conn.execute(statement("begin_claim"))
        try:
            yield _Claim(conn)
        except BaseException:
            await _rollback(conn)
            raise
        await conn.execute("COMMIT")


async def _rollback(conn: Connection) -> None:
    try:
        await conn.rollback()
    except psycopg.Error:
        # The connection is gone, and with it the transaction: the pool replaces it.
        await conn.close()
