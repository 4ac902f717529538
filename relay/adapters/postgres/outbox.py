"""PostgresOutboxAdapter: PORT-047-001 on outbox_events."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg

from relay.adapters.postgres import array
from relay.adapters.postgres.failures import migrated
from relay.adapters.postgres.low_water import NO_LANE, NONE, SEARCH_LIMITS, Epoch, LowWaterMarks, SearchLimits
from relay.adapters.postgres.pool import Connection, Pool, query
from relay.adapters.postgres.sql import statement
from relay.domain.errors import NotPublishable
from relay.domain.policies import Published
from relay.ports import OutboxRow, PublishFailure

#: Errors about a single row, for example from a constraint or a trigger. The database itself is healthy.
_ROW_ERRORS: Final = (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.RaiseException)
#: For how long a row whose result cannot be recorded is left alone, in seconds.
_LEFT_ALONE_S: Final = 3600.0
#: The most rows that a claim may have.
_MAX_ROWS: Final = 1_000
#: After this many seconds, the idle time-out of a claim is restarted.
_RESTART_AFTER_S: Final = 0.5


@dataclass(slots=True)
class _OutboxClaim:
    """The rows of one open claim transaction, and the writes that settle them.

    ``unsettled``: rows whose result cannot be recorded, and until when each is not claimed again.
    """

    conn: Connection
    unsettled: dict[str, float]
    lanes: Sequence[int] = ()
    rows: Sequence[OutboxRow] = field(default_factory=list)
    busy: Collection[int] = ()
    more: bool = False
    begun: float = field(default_factory=time.monotonic)

    async def keep(self) -> None:
        """Restart the idle time-out of the claim, unless it began just now."""
        if time.monotonic() - self.begun > _RESTART_AFTER_S:
            self.begun = time.monotonic()
            await self.conn.execute(statement("outbox/keep_claim"))

    async def mark_published(self, acks: Mapping[str, Published]) -> Mapping[str, datetime | str]:
        if not acks:
            return {}
        try:
            return await self._mark(acks)
        except _ROW_ERRORS:
            # The rollback loses only the locks.
            await self.conn.rollback()
            await self.conn.execute(statement("outbox/begin_claim"))
            marked: dict[str, datetime | str] = {}

            async def mark(id: str) -> None:
                marked.update(await self._mark({id: acks[id]}))

            return marked | await self._apart(acks, mark)

    async def increment_attempts(self, failures: Sequence[PublishFailure]) -> None:
        if not failures:
            return
        try:
            async with self.conn.transaction():
                await self._fail(failures)
        except _ROW_ERRORS:
            by_id = {failure.id: failure for failure in failures}
            until = time.monotonic() + _LEFT_ALONE_S
            self.unsettled |= dict.fromkeys(await self._apart(by_id, lambda id: self._fail([by_id[id]])), until)

    async def _apart(self, ids: Iterable[str], settle: Callable[[str], Awaitable[None]]) -> dict[str, str]:
        """Settle rows one by one. Returns the rows that failed, with a reason that shows no content."""
        refused = {}
        for id in ids:
            try:
                async with self.conn.transaction():
                    await settle(id)
            except _ROW_ERRORS as error:
                refused[id] = f"{error.diag.constraint_name or type(error).__name__} ({error.sqlstate})"
        return refused

    async def _mark(self, acks: Mapping[str, Published]) -> dict[str, datetime]:
        [(at,)] = await query(
            self.conn,
            "outbox/mark_published",
            ids=array.of_plain(acks),
            streams=array.of_plain(ack.stream for ack in acks.values()),
            seqs=array.of_plain(ack.seq for ack in acks.values()),
            duplicates=array.of_plain(ack.duplicate for ack in acks.values()),
        )
        return dict.fromkeys(acks, at)

    async def _fail(self, failures: Sequence[PublishFailure]) -> None:
        await self.conn.execute(
            statement("outbox/record_failures"),
            {
                "ids": [failure.id for failure in failures],
                "errors": [failure.error[:2_000] for failure in failures],
                "delays": [failure.delay for failure in failures],
                "counted": [int(failure.counts) for failure in failures],
            },
        )


class PostgresOutboxAdapter:
    """Claims by row locks under lane locks; the transaction is the lease (DESIGN §5).

    ``dead_head_blocks``: whether a dead event holds back the later ones of its key. ``search``: when
    low-water marks are searched for.
    """

    def __init__(
        self, pool: Pool, *, dead_head_blocks: bool = False, search: SearchLimits = SEARCH_LIMITS
    ) -> None:
        self._pool = pool
        self._dead_head_blocks = dead_head_blocks
        self._marks = LowWaterMarks(search)
        self._unsettled: dict[str, float] = {}
        #: How many rows a claim asks for at most. With large rows, about as many as a claim may take.
        self._most = _MAX_ROWS

    @asynccontextmanager
    async def find_unpublished(
        self, lanes: Sequence[int], limit: int, max_bytes: int
    ) -> AsyncIterator[_OutboxClaim]:
        async with _claim(self._pool, self._unsettled) as claim:
            limit = min(limit, self._most)
            found = await self._take(claim, lanes, limit)
            if found is None:
                claim.more = True
            else:
                # The last columns: the event's lane, the share of a lane, and how often events were reopened.
                rows = self._to_settle([OutboxRow._make(row[:-3]) for row in found])
                claim.rows = await _within(claim, rows, max_bytes)
                cut = len(claim.rows) < len(rows)
                self._most = 2 * len(claim.rows) if cut else min(4 * limit, _MAX_ROWS)
                claim.busy = Counter(row[-3] for row in found)
                claim.more = bool(claim.rows) and (
                    len(found) >= limit or cut or any(claim.busy[row[-3]] >= row[-2] for row in found)
                )
            yield claim

    def _to_settle(self, rows: list[OutboxRow]) -> list[OutboxRow]:
        """Leave out rows that could not be settled lately: it would be useless to send them again."""
        if not self._unsettled:
            return rows
        now = time.monotonic()
        for id in [id for id, until in self._unsettled.items() if until <= now]:
            del self._unsettled[id]
        return [row for row in rows if row.id not in self._unsettled]

    async def _take(
        self, claim: _OutboxClaim, lanes: Sequence[int], limit: int
    ) -> Sequence[tuple[Any, ...]] | None:
        """Lock lanes and claim what is ready in them; None while the marks are too far behind."""
        with migrated():
            locked = await query(claim.conn, "outbox/lock_lanes", lanes=list(lanes))
        claim.lanes = [lane for lane, *_ in locked if lane is not None]
        _, *epoch, highest = locked[0]
        marks = await self._marks.find(claim.conn, [*claim.lanes, NO_LANE], Epoch(*epoch), highest)
        if marks is None:
            return None
        found = await self._claim_from(marks, claim, limit)
        if found and found[0][-1] != epoch[0]:
            # Events that were reopened just now may lie below the marks, and before those that were found.
            found = await self._claim_from([NONE] * len(marks), claim, limit)
        return found

    async def _claim_from(
        self, marks: Sequence[int], claim: _OutboxClaim, limit: int
    ) -> Sequence[tuple[Any, ...]]:
        terms = {
            "lanes": claim.lanes,
            "marks": marks,
            "limit": limit,
            "dead_head_blocks": self._dead_head_blocks,
        }
        begun = claim.begun = time.monotonic()
        try:
            return await query(claim.conn, "outbox/claim", **terms)
        except psycopg.errors.QueryCanceled:
            self._most = max(limit // 8, 1)
            raise
        finally:
            # Also after a time-out: then marks are needed most.
            self._marks.note(time.monotonic() - begun)

    @asynccontextmanager
    async def find_one(self, event_id: UUID) -> AsyncIterator[_OutboxClaim]:
        async with _claim(self._pool, {}) as claim:
            try:
                with migrated():
                    await claim.conn.execute(statement("outbox/lock_lane_of_event"), {"id": event_id})
            except psycopg.errors.QueryCanceled as error:
                raise NotPublishable(
                    f"a worker publishes events of the lane of {event_id}", hint="try again in a moment"
                ) from error
            claim.begun = time.monotonic()
            which = {"id": event_id, "dead_head_blocks": self._dead_head_blocks}
            claim.rows = [OutboxRow._make(row) for row in await query(claim.conn, "outbox/claim_event", **which)]
            await claim.keep()
            yield claim


async def _within(claim: _OutboxClaim, rows: Sequence[OutboxRow], max_bytes: int) -> list[OutboxRow]:
    """Return the first rows up to ``max_bytes`` in sum, but at least one. Fetches the large ones."""
    large = [row.id for row in rows if row.payload is None]
    fetched = {row.id: row for row in await _fetch(claim, large, max_bytes)} if large else {}
    await claim.keep()
    taken: list[OutboxRow] = []
    size = 0
    for row in rows:
        whole = row if row.payload is not None else fetched.get(row.id)
        if whole is None or size >= max_bytes:
            break
        taken.append(whole)
        size += len(whole.payload or "")
    return taken


async def _fetch(claim: _OutboxClaim, ids: Sequence[str], max_bytes: int) -> list[OutboxRow]:
    """Fetch large rows in this order, at least one. A row that PostgreSQL cannot render has no payload."""
    for some in (ids, ids[:1]):
        with suppress(psycopg.errors.ProgramLimitExceeded, psycopg.errors.QueryCanceled):
            async with claim.conn.transaction():
                return await _read(claim, some, max_bytes, readable=True)
    return await _read(claim, ids[:1], max_bytes, readable=False)


async def _read(claim: _OutboxClaim, ids: Sequence[str], max_bytes: int, *, readable: bool) -> list[OutboxRow]:
    claim.begun = time.monotonic()
    terms = {"ids": array.of_plain(ids), "bytes": max_bytes, "readable": readable}
    return [OutboxRow._make(row) for row in await query(claim.conn, "outbox/large", **terms)]


@asynccontextmanager
async def _claim(pool: Pool, unsettled: dict[str, float]) -> AsyncIterator[_OutboxClaim]:
    """Open the claim transaction, commit it on the way out, roll it back on an exception."""
    async with pool.connection() as conn:
        await conn.execute(statement("outbox/begin_claim"))
        try:
            yield _OutboxClaim(conn, unsettled)
        except BaseException:
            await _rollback(conn)
            raise
        await conn.execute("COMMIT")


async def _rollback(conn: Connection) -> None:
    try:
        await conn.rollback()
    except psycopg.Error:
        # Connection and transaction are lost. The pool replaces the connection.
        await conn.close()
