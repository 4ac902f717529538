"""PostgresOutboxAdapter: PORT-047-001 on outbox_events."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final, TypeAlias
from uuid import UUID

import psycopg
from psycopg.errors import InvalidSqlStatementName

from relay.adapters.postgres import array
from relay.adapters.postgres.claimant import about_worker
from relay.adapters.postgres.failures import about_rows, migrated
from relay.adapters.postgres.low_water import NO_LANE, NONE, SEARCH_LIMITS, Epoch, LowWaterMarks, SearchLimits
from relay.adapters.postgres.pipeline import COMMIT, Command, as_sent, run_all, tuples
from relay.adapters.postgres.pool import Connection, Source, query
from relay.adapters.postgres.sql import statement
from relay.adapters.postgres.unsettled import UnsettledRows
from relay.domain.errors import NotPublishable
from relay.domain.large import MAX_LARGE_BYTES, Reference
from relay.domain.policies import EXPIRED, Published
from relay.ports import Expiry, OutboxRow, PublishFailure

#: The rows of a statement.
Rows: TypeAlias = Sequence[tuple[Any, ...]]
#: The largest event that is read, in bytes, while the server's limit is not known.
LARGEST: Final = 64 * 1024**2
#: For how long events are looked at before they are unpacked, after one that could not be, in seconds.
_WARY_S: Final = 60.0
#: What PostgreSQL says of an event that it cannot unpack, or not in time.
_NOT_SHOWN: Final = (
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.StatementTooComplex,
    psycopg.errors.OutOfMemory,
    psycopg.errors.QueryCanceled,
)
#: The most rows that a claim may have.
_MAX_ROWS: Final = 1_000
#: After this many seconds, the idle time-out of a claim is restarted.
_RESTART_AFTER_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class KeptPayloads:
    """Payloads of ``context`` above ``limit`` bytes are not read to be published: a reference goes instead."""

    context: str
    limit: int

    def reference(self, id: str, size: int, sha256: str) -> Reference:
        """What refers to the payload of an event."""
        return Reference(self.context, UUID(id), size, sha256)


@dataclass(slots=True)
class _Unpacking:
    """What a process knows of events that are too large. ``largest``, ``kept``: see `PostgresOutboxAdapter`.

    ``wary_until``: until then no event is unpacked unseen, because one could not be.
    """

    largest: Callable[[], int] = lambda: LARGEST
    wary_until: float = 0.0
    kept: KeptPayloads | None = None


@dataclass(slots=True)
class _OutboxClaim:
    """The rows of one open claim transaction, and the writes that settle them.

    ``unsettled``: gets the rows whose result cannot be recorded.
    """

    conn: Connection
    unsettled: UnsettledRows
    lanes: Sequence[int] = ()
    rows: Sequence[OutboxRow] = field(default_factory=list)
    busy: Collection[int] = ()
    more: bool = False
    references: dict[str, Reference] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
    unpacking: _Unpacking = field(default_factory=_Unpacking)

    async def begin(self, commands: Sequence[Command] = ()) -> list[Rows]:
        """Open the transaction, and run commands in the same round trip. Returns the rows of each."""
        try:
            return await self._open(commands)
        except InvalidSqlStatementName:
            # The driver has deallocated every statement, as it does after a rollback.
            await self.conn.rollback()
            return await self._open(commands)

    async def _open(self, commands: Sequence[Command]) -> list[Rows]:
        every = [("outbox/begin", {}), ("outbox/claim_settings", {}), *commands]
        with migrated():
            _, _, *results = await run_all(self.conn, [as_sent(it) for it in every])
        return [tuples(it, self.conn) for it in results]

    async def keep(self) -> None:
        """Restart the idle time-out of the claim, unless it began just now."""
        if time.monotonic() - self.begun > _RESTART_AFTER_S:
            self.begun = time.monotonic()
            await self.conn.execute(statement("outbox/keep_claim"))

    async def expire(self, events: Mapping[str, timedelta | None]) -> Mapping[str, Expiry]:
        found: dict[str, Expiry] = {}

        async def expire(ids: Sequence[str]) -> None:
            terms = {
                "ids": array.of_plain(ids),
                "ages": array.of_spans(events[id] for id in ids),
                "reason": EXPIRED,
            }
            found.update({id: Expiry(*rest) for id, *rest in await query(self.conn, "outbox/expire", **terms)})

        await self._apart(list(events), expire)
        return found

    async def mark_published(self, acks: Mapping[str, Published]) -> Mapping[str, datetime | str]:
        if not acks:
            return {}
        try:
            [marked] = await run_all(self.conn, [as_sent(_marking(acks))])
            [(at,)] = tuples(marked, self.conn)
        except psycopg.Error as error:
            forgotten = isinstance(error, InvalidSqlStatementName)
            if not forgotten and not about_rows(error):
                raise
            return await self._mark_apart(acks, None if forgotten else error)
        return dict.fromkeys(acks, at)

    async def _mark_apart(
        self, acks: Mapping[str, Published], error: psycopg.Error | None
    ) -> dict[str, datetime | str]:
        """Mark in another transaction what could not be marked together. The rollback loses only the locks."""
        await self.conn.rollback()
        await self.begin()
        marked: dict[str, datetime | str] = {}

        async def mark(ids: Sequence[str]) -> None:
            name, terms = _marking({id: acks[id] for id in ids})
            [(at,)] = await query(self.conn, name, **terms)
            marked.update(dict.fromkeys(ids, at))

        return marked | await self._apart(list(acks), mark, error)

    async def increment_attempts(self, failures: Sequence[PublishFailure]) -> None:
        if not failures:
            return
        by_id = {failure.id: failure for failure in failures}

        async def fail(ids: Sequence[str]) -> None:
            await self._fail([by_id[id] for id in ids])

        self.unsettled.note(await self._apart(list(by_id), fail))

    async def _apart(
        self,
        ids: Sequence[str],
        settle: Callable[[Sequence[str]], Awaitable[None]],
        known: psycopg.Error | None = None,
    ) -> dict[str, str]:
        """Settle rows together; if that fails, each half by itself. Returns the rows that failed, with a reason.

        ``known``: with what settling them together has failed already. A reason shows no content.
        """
        error = known
        if error is None:
            try:
                async with self.conn.transaction():
                    await settle(ids)
            except psycopg.Error as raised:
                if not about_rows(raised):
                    raise
                error = raised
            else:
                return {}
        if len(ids) == 1:
            return {ids[0]: f"{error.diag.constraint_name or type(error).__name__} ({error.sqlstate})"}
        middle = len(ids) // 2
        return await self._apart(ids[:middle], settle) | await self._apart(ids[middle:], settle)

    async def _fail(self, failures: Sequence[PublishFailure]) -> None:
        await self.conn.execute(
            statement("outbox/record_failures"),
            {
                "ids": [failure.id for failure in failures],
                "errors": [failure.error[:2_000] for failure in failures],
                "delays": [failure.delay for failure in failures],
                "counted": [int(failure.counts) for failure in failures],
                "worker": about_worker(),
            },
        )


def _marking(acks: Mapping[str, Published]) -> Command:
    streams, seqs, duplicates, _ = zip(*acks.values(), strict=True)
    return "outbox/mark_published", {
        "ids": array.of_plain(acks),
        "streams": array.of_plain(streams),
        "seqs": array.of_plain(seqs),
        "duplicates": array.of_plain(duplicates),
    }


class PostgresOutboxAdapter:
    """Claims by row locks under lane locks; the transaction is the lease (DESIGN §5).

    ``dead_head_blocks``: whether a dead event holds back the later ones of its key. ``search``: when
    low-water marks are searched for. ``largest``: the largest message that the broker takes, in bytes. A larger
    event comes without its payload. ``kept``: which payloads stay in their rows; None: none.
    """

    def __init__(
        self,
        source: Source,
        *,
        dead_head_blocks: bool = False,
        search: SearchLimits = SEARCH_LIMITS,
        largest: Callable[[], int] = lambda: LARGEST,
        kept: KeptPayloads | None = None,
    ) -> None:
        self._source = source
        self._unpacking = _Unpacking(largest, kept=kept)
        self._dead_head_blocks = dead_head_blocks
        self._marks = LowWaterMarks(search)
        self._unsettled = UnsettledRows()
        #: How many rows a claim asks for at most. With large rows, about as many as a claim may take.
        self._most = _MAX_ROWS

    @asynccontextmanager
    async def find_unpublished(
        self, lanes: Sequence[int], limit: int, max_bytes: int
    ) -> AsyncIterator[_OutboxClaim]:
        limit = min(limit, self._most)
        # Mostly nothing but the lanes is new, and everything goes in one round trip.
        foreseen = self._marks.foresee([*lanes, NO_LANE])
        first: list[Command] = [("outbox/lock_lanes", {"lanes": array.of_plain(lanes)})]
        if foreseen is not None:
            first.append(self._claiming(lanes, foreseen[1], limit))
        async with _claim(self._source, self._unsettled, self._unpacking) as claim:
            with self._timed(claim, limit) if foreseen else nullcontext():
                locked, *claimed = await claim.begin(first)
            found = await self._take(claim, locked, limit, foreseen and foreseen[0], claimed)
            if found is None:
                claim.more = True
            else:
                # The last columns: the event's lane, the share of a lane, and how often events were reopened.
                rows = [*map(_as_row, found)]
                claim.rows = await _within(claim, rows, max_bytes)
                cut = len(claim.rows) < len(rows)
                self._most = 2 * len(claim.rows) if cut else min(4 * limit, _MAX_ROWS)
                claim.busy = busy = Counter([row[-3] for row in found])
                claim.more = bool(claim.rows) and (
                    len(found) >= limit or cut or max(busy.values()) >= found[0][-2]
                )
            yield claim

    async def _take(
        self, claim: _OutboxClaim, locked: Rows, limit: int, foreseen: Epoch | None, claimed: Sequence[Rows]
    ) -> Rows | None:
        """Return what is claimed of the lanes that were locked; None while the marks are too far behind.

        ``claimed``: what was claimed with marks that were ``foreseen``.
        """
        claim.lanes = [lane for lane, *_ in locked if lane is not None]
        _, *rest, highest = locked[0]
        epoch = Epoch(*rest)
        if claimed and foreseen is not None and self._marks.holds(foreseen, epoch, highest):
            [found] = claimed
        else:
            marks = await self._marks.find(claim.conn, [*claim.lanes, NO_LANE], epoch, highest)
            if marks is None:
                return None
            found = await self._claim_from(marks, claim, limit)
        if found and found[0][-1] != epoch.times:
            # Events that were reopened just now may lie below the marks, and before those that were found.
            found = await self._claim_from([NONE] * (len(claim.lanes) + 1), claim, limit)
        return found

    async def _claim_from(self, marks: Sequence[int], claim: _OutboxClaim, limit: int) -> Rows:
        with self._timed(claim, limit):
            name, terms = self._claiming(claim.lanes, marks, limit)
            # By the driver: the search for marks may have made it forget what was prepared.
            return await query(claim.conn, name, **terms)

    def _claiming(self, lanes: Sequence[int], marks: Sequence[int], limit: int) -> Command:
        return "outbox/claim", {
            "lanes": array.of_plain(lanes),
            "marks": array.of_plain(marks),
            "limit": limit,
            "dead_head_blocks": self._dead_head_blocks,
            "apart": array.of_plain(self._unsettled.ids()),
        }

    @contextmanager
    def _timed(self, claim: _OutboxClaim, limit: int) -> Iterator[None]:
        """Note how long a claim takes, and ask for less after one that did not end in its time."""
        begun = claim.begun = time.monotonic()
        try:
            yield
        except psycopg.errors.QueryCanceled:
            self._most = max(limit // 8, 1)
            raise
        finally:
            # Also after a time-out: then marks are needed most.
            self._marks.note(time.monotonic() - begun)

    @asynccontextmanager
    async def find_one(self, event_id: UUID) -> AsyncIterator[_OutboxClaim]:
        async with _claim(self._source, UnsettledRows(), self._unpacking) as claim:
            await claim.begin()
            try:
                with migrated():
                    await claim.conn.execute(statement("outbox/lock_lane_of_event"), {"id": event_id})
            except psycopg.errors.QueryCanceled as error:
                raise NotPublishable(
                    f"a worker publishes events of the lane of {event_id}", hint="try again in a moment"
                ) from error
            claim.begun = time.monotonic()
            which = {"id": event_id, "dead_head_blocks": self._dead_head_blocks}
            rows = [OutboxRow._make(row) for row in await query(claim.conn, "outbox/claim_event", **which)]
            claim.rows = [_referring(claim, row) for row in rows]
            await claim.keep()
            yield claim


def _as_row(found: tuple[Any, ...]) -> OutboxRow:
    # As `OutboxRow(...)` does, without its function in Python.
    return tuple.__new__(OutboxRow, found[:-3])


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
    for some, slow in ((ids, False), (ids[:1], claim.unpacking.kept is not None)):
        with suppress(*_NOT_SHOWN):
            if slow:
                await claim.conn.execute(statement("outbox/slowly"))
            async with claim.conn.transaction():
                return await _read(claim, some, max_bytes, readable=True)
        claim.unpacking.wary_until = time.monotonic() + _WARY_S
    return await _read(claim, ids[:1], max_bytes, readable=False)


async def _read(claim: _OutboxClaim, ids: Sequence[str], max_bytes: int, *, readable: bool) -> list[OutboxRow]:
    begun = claim.begun = time.monotonic()
    kept = claim.unpacking.kept
    terms = {
        "ids": array.of_plain(ids),
        "bytes": max_bytes,
        "largest": claim.unpacking.largest(),
        "wary": begun < claim.unpacking.wary_until,
        "readable": readable,
        "kept": None if kept is None else kept.limit,
        "most": MAX_LARGE_BYTES,
    }
    rows = []
    for *values, size, digest in await query(claim.conn, "outbox/large", **terms):
        row = OutboxRow._make(values)
        if kept is not None and digest is not None:
            row = _with_reference(claim, row, kept.reference(row.id, size, digest))
        rows.append(row)
    return rows


def _with_reference(claim: _OutboxClaim, row: OutboxRow, reference: Reference) -> OutboxRow:
    claim.references[row.id] = reference
    return row._replace(payload=reference.payload)


def _referring(claim: _OutboxClaim, row: OutboxRow) -> OutboxRow:
    """The same for a row that was read as a whole."""
    kept = claim.unpacking.kept
    if kept is None or row.payload is None or len(row.payload) <= kept.limit // 4:
        return row
    content = row.payload.encode()
    if not kept.limit < len(content) <= MAX_LARGE_BYTES:
        return row
    return _with_reference(claim, row, kept.reference(row.id, len(content), sha256(content).hexdigest()))


@asynccontextmanager
async def _claim(source: Source, unsettled: UnsettledRows, unpacking: _Unpacking) -> AsyncIterator[_OutboxClaim]:
    """Lend a connection for a claim transaction; commit it on the way out, roll it back on an exception."""
    async with source() as conn:
        try:
            claim = _OutboxClaim(conn, unsettled)
            claim.unpacking = unpacking
            yield claim
        except BaseException:
            await _rollback(conn)
            raise
        await run_all(conn, [as_sent(COMMIT)], named=False)


async def _rollback(conn: Connection) -> None:
    try:
        await conn.rollback()
    except psycopg.Error:
        # Connection and transaction are lost. The pool replaces the connection.
        await conn.close()
