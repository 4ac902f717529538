"""PostgresInboxAdapter: PORT-047-002 on inbox_messages."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import UUID

import psycopg

from relay.adapters.postgres import array
from relay.adapters.postgres.claimant import claim_token, note_of
from relay.adapters.postgres.pipeline import Command, fetch, fetch_tuples
from relay.adapters.postgres.pool import Connection, Pool, query
from relay.adapters.postgres.sql import statement
from relay.concurrency import Batcher
from relay.domain.disclosure import clean, safe_text
from relay.domain.errors import DatabaseUnreachable, MalformedMessage
from relay.domain.identity import NO_ORIGINALS, Originals
from relay.domain.model import Finished
from relay.domain.policies import (
    EXPIRED,
    UNLIMITED_ATTEMPTS,
    DeadLetter,
    DeadLetterClass,
    Retry,
    TooLate,
    unanswered,
)
from relay.ports import ClaimedMessage, InboxRow, Inserted


def _headers(values: Sequence[Mapping[str, str]]) -> str:
    return array.of_texts([json.dumps(dict(headers)) for headers in values])


def _originals(values: Sequence[Originals]) -> str:
    return array.of_texts([json.dumps(dict(texts)) if texts else None for texts in values])


#: The columns of a message, and how each is written for many rows.
_WRITERS: Final[Mapping[str, Callable[[Any], str]]] = {
    "message_id": array.of_plain,
    "subject": array.of_texts,
    "subscription": array.of_texts,
    "stream": array.of_texts,
    "stream_seq": array.of_plain,
    "ack_subject": array.of_texts,
    "body": array.of_bytes,
    "headers": _headers,
    "event_type": array.of_texts,
    "event_version": array.of_plain,
    "occurred_at": array.of_moments,
    "partition_key": array.of_texts,
    "correlation_id": array.of_plain,
    "causation_id": array.of_plain,
    "order_key": array.of_texts,
    "originals": _originals,
    "source_id": array.of_plain,
}
#: Stands for the statement that inserts, and whose commit does not wait for the disk.
_INSERT_SOON: Final = "inbox/insert soon"
_LOOK_INTERVAL_S: Final = 60.0
#: What the claims of one statement share: the lease, and the number of attempts after which a message is given up.
_Terms: TypeAlias = tuple[timedelta, int]
_BEGINNING: Final = (datetime.min.replace(tzinfo=UTC), UUID(int=0))


class PostgresInboxAdapter:
    """Claims are leases by the clock of the database. The claim's token fences every later write.

    Claims that are asked for at the same time share one statement.
    ``grace``: when a row is this long overdue for a claim, the sweep treats it as lost.
    """

    #: Whether a message that has a key is claimed only when it is its turn.
    _ordered = False
    _overdue = "inbox/overdue"

    def __init__(self, pool: Pool, *, grace: timedelta = timedelta(seconds=5)) -> None:
        self._pool = pool
        self._grace = grace
        self._looked: dict[str, float] = {}
        self._pings: Batcher[None, None] = Batcher(self._ping)
        self._claims: dict[_Terms, Batcher[UUID, ClaimedMessage | None]] = {}

    async def insert(self, rows: Sequence[InboxRow], *, lasting: bool = True) -> Sequence[Inserted]:
        """See the port. Raises MalformedMessage when PostgreSQL refuses a value of the batch."""
        if not rows:
            return []
        async with self._pool.connection() as conn:
            return await insert(conn, "inbox/insert" if lasting else _INSERT_SOON, rows)

    async def note_expiry(self, ends: Mapping[UUID, datetime | None], expires_in: timedelta | None = None) -> None:
        terms = {"ids": array.of_plain(ends), "ends": array.of_moments(ends.values()), "expires_in": expires_in}
        async with self._pool.connection() as conn:
            await conn.execute(statement("inbox/note_expiry"), terms)

    async def claim(
        self, message_id: UUID, lease: timedelta, max_attempts: int = UNLIMITED_ATTEMPTS
    ) -> ClaimedMessage | None:
        terms = lease, max_attempts
        # Of ordered messages few may run at once, so they are claimed one by one.
        if not self._ordered:
            if terms not in self._claims:
                self._claims[terms] = Batcher(partial(self._claim_together, terms))
            if (claim := await self._claims[terms].ask(message_id)) is not None:
                return claim
        return await self.claim_alone(message_id, *terms)

    async def claim_alone(self, message_id: UUID, lease: timedelta, max_attempts: int) -> ClaimedMessage | None:
        """Claim a row by a statement of its own, which waits if the row is locked."""
        claims = await self._fetch(self.claim_command(message_id, lease, max_attempts))
        return claims[0] if claims else None

    async def claim_many(
        self, ids: Sequence[UUID], others: Sequence[UUID], lease: timedelta, max_attempts: int
    ) -> Mapping[UUID, ClaimedMessage]:
        """Claim rows, and also the others that were never tried, by one statement. It skips locked rows."""
        fetched = await self._fetch(claim_many_command([*ids, *others], ids, lease, max_attempts))
        return {claim.row.message_id: claim for claim in fetched}

    async def unclaim(self, claims: Sequence[ClaimedMessage]) -> None:
        """Undo claims that have not begun, and the attempts that they counted."""
        async with self._pool.connection() as conn:
            await fetch(conn, ("inbox/unclaim", ids_and_tokens(claims)))

    async def _claim_together(self, terms: _Terms, ids: Sequence[UUID]) -> Sequence[ClaimedMessage | None]:
        claims = dict(await self.claim_many(ids, (), *terms))
        # If two callers asked for the same message, the first one gets it.
        return [claims.pop(id, None) for id in ids]

    async def _fetch(self, command: Command) -> Sequence[ClaimedMessage]:
        since = time.monotonic()
        async with self._pool.connection() as conn:
            return [claimed(command, row, since) for row in await fetch(conn, command)]

    def claim_command(self, message_id: UUID, lease: timedelta, max_attempts: int) -> Command:
        """Return the statement that claims a row."""
        name = "inbox/claim+in_turn" if self._ordered else "inbox/claim"
        return name, {"message_id": message_id, **_claim_values(lease, max_attempts)}

    async def renew(self, claim: ClaimedMessage, lease: timedelta) -> bool:
        return await self._settle("inbox/renew", claim, lease=lease)

    async def mark_all_processed(self, claims: Sequence[ClaimedMessage]) -> Sequence[ClaimedMessage]:
        async with self._pool.connection() as conn:
            rows = await fetch(conn, ("inbox/mark_many_processed", ids_and_tokens(claims)))
        marked = {row["message_id"] for row in rows}
        # The statement leaves out locked rows. Each is marked alone, which waits for its lock.
        return [
            claim
            for claim in claims
            if claim.row.message_id in marked or await self._settle("inbox/mark_processed", claim)
        ]

    async def record_error(self, claim: ClaimedMessage, disposition: Retry) -> bool:
        values = {
            "delay": disposition.delay,
            "uncounted": int(not disposition.counts),
            "note": note_of(disposition),
        }
        return await self._settle("inbox/record_error", claim, error=clean(disposition.error), **values)

    async def reject(self, claim: ClaimedMessage, disposition: DeadLetter) -> bool:
        values = {"kind": disposition.kind.value, "note": note_of(disposition)}
        return await self._settle("inbox/reject", claim, reason=clean(disposition.reason), **values)

    async def expire(self, claim: ClaimedMessage) -> bool:
        return await self._settle("inbox/expire", claim)

    async def mark_dead_lettered(self, claim: ClaimedMessage) -> bool:
        return await self._settle("inbox/mark_dead_lettered", claim, skip=False)

    async def release(self, claim: ClaimedMessage, delay: timedelta) -> bool:
        return await self._settle("inbox/release", claim, delay=delay)

    async def _settle(self, name: str, claim: ClaimedMessage, **values: Any) -> bool:
        id = claim.row.message_id
        parameters = {"message_id": id, "ids": [id], "token": claim.token, **values}
        async with self._pool.connection() as conn:
            cursor = await conn.execute(statement(name), parameters)
            return cursor.rowcount == 1

    async def overdue(
        self,
        subscription: str,
        limit: int,
        waited: timedelta = timedelta(0),
        *,
        at_once: bool = False,
        failed: bool | None = None,
    ) -> Sequence[UUID]:
        await self._forget_order(subscription)
        grace = timedelta(0) if at_once else self._grace + waited
        terms = {"subscription": subscription, "limit": limit, "grace": grace, "failed": failed}
        async with self._pool.connection() as conn:
            return [message_id for (message_id,) in await query(conn, self._overdue, **terms)]

    async def waiting(self, subscription: str, page: int, *, due: bool = False) -> AsyncIterator[Sequence[str]]:
        at, id = _BEGINNING
        where: dict[str, Any] = {"subscription": subscription, "limit": page, "due": due}
        while True:
            parameters = {**where, "received_at": at, "message_id": id}
            async with self._pool.connection() as conn:
                rows = await query(conn, "inbox/waiting", **parameters)
            yield [reply for _, _, reply in rows]
            if len(rows) < page:
                return
            at, id, _ = rows[-1]

    async def missing(self, subscription: str, stream: str, after: int, upto: int) -> Sequence[int]:
        where = {"subscription": subscription, "stream": stream, "after": after, "upto": upto}
        async with self._pool.connection() as conn:
            return [seq for (seq,) in await query(conn, "inbox/missing", **where)]

    async def finished(
        self, subscription: str, stream: str, after: int, upto: int, *, on_receipt: bool = False
    ) -> Sequence[Finished]:
        where = {"subscription": subscription, "stream": stream, "after": after, "upto": upto}
        async with self._pool.connection() as conn:
            rows = await query(conn, "inbox/finished", **where, on_receipt=on_receipt)
        return [Finished(*row) for row in rows]

    async def let_go(
        self, subscription: str, keep: int, limit: int, hangs: timedelta | None = None
    ) -> Sequence[str]:
        terms = {"subscription": subscription, "keep": keep, "limit": limit, "hangs": hangs}
        async with self._pool.connection() as conn:
            return [reply for (reply,) in await query(conn, "inbox/let_go", **terms)]

    async def _forget_order(self, subscription: str) -> None:
        """Release messages that wait because the subscription was ordered before. Looks once a minute."""
        now = time.monotonic()
        if now >= self._looked.get(subscription, now):
            async with self._pool.connection() as conn:
                await conn.execute(statement("inbox/forget_order"), {"subscription": subscription})
            self._looked[subscription] = now + _LOOK_INTERVAL_S

    async def due(self, subscription: str, limit: int, *, later: bool = False) -> int:
        name = "inbox/unfinished" if later else "inbox/due"
        async with self._pool.connection() as conn:
            [(count,)] = await query(conn, name, subscription=subscription, limit=limit)
        return int(count)

    async def ping(self) -> None:
        # The pulls of all subscriptions begin at the same time. For each, the pool would open a connection.
        await self._pings.ask(None)

    async def _ping(self, asked: Sequence[None]) -> Sequence[None]:
        async with self._pool.connection() as conn:
            [(writable,)] = await query(conn, "inbox/ping")
        if not writable:
            raise DatabaseUnreachable("takes no changes: it only reads, or relay context close has closed it")
        return asked


async def insert(
    conn: Connection, name: str, rows: Sequence[InboxRow], places: Mapping[UUID, int] | None = None, **more: Any
) -> list[Inserted]:
    """Insert a batch by the statement ``name``. Raises MalformedMessage when PostgreSQL refuses a value of it.

    ``places``: the place in the order of each message, by its id. Usually one statement answers for all. Messages
    that it leaves out are in the archive, or another subscription has their key. These get a key apart, and then
    another one while somebody has that.
    """
    # A statement may change a row only once. If a message is in the batch twice, the later delivery counts.
    batch = {row.id: row for row in rows}
    found = await _insert_all(conn, name, list(batch.values()), places, more)
    doubtful = [row for row in batch.values() if row.rejected is not None and not found[row.id].new]
    if doubtful and (anew := {row.id: row.anew() for row in await _others(conn, doubtful, found)}):
        moved = None if places is None else {row.id: places[id] for id, row in anew.items()}
        inserted = await _insert_all(conn, name, list(anew.values()), moved, more)
        found |= {id: inserted[row.id] for id, row in anew.items()}
    return [found[id] for id in batch]


async def _others(
    conn: Connection, rows: Sequence[InboxRow], found: Mapping[UUID, Inserted]
) -> Sequence[InboxRow]:
    """Those unreadable messages whose place another one had: its row has another body, or is in the archive."""
    keys = [found[row.id].message_id for row in rows]
    bodies = array.of_bytes(row.body for row in rows)
    others = {key for (key,) in await query(conn, "inbox/others", keys=keys, bodies=bodies)}
    return [row for key, row in zip(keys, rows, strict=True) if key in others]


async def _insert_all(
    conn: Connection, name: str, left: list[InboxRow], places: Mapping[UUID, int] | None, more: dict[str, Any]
) -> dict[UUID, Inserted]:
    found: dict[UUID, Inserted] = {}
    while left:
        # In the order of their keys: subscriptions with the same ids never wait for each other in a circle.
        left.sort(key=lambda row: row.message_id.int)
        if places is not None:
            more["order_seq"] = array.of_plain(places[row.id] for row in left)
        found |= {it.id: it for it in await _insert(conn, name, left, more)}
        if left := [row for row in left if row.id not in found]:
            ids = [row.id for row in left]
            subscriptions = [row.subscription for row in left]
            for (id,) in await query(conn, "inbox/archived", ids=ids, subscription=subscriptions):
                found[id] = Inserted(id, new=False, done=True)
            left = [row.apart() for row in left if row.id not in found]
    return found


async def _insert(
    conn: Connection, name: str, rows: Sequence[InboxRow], more: Mapping[str, Any]
) -> Sequence[Inserted]:
    columns = zip(InboxRow._fields, zip(*rows, strict=True), strict=True)
    arrays = {name: _WRITERS[name](values) for name, values in columns if name in _WRITERS}
    verdicts = [row.rejected for row in rows]
    arrays["reason"] = array.of_texts(None if it is None else clean(it.reason) for it in verdicts)
    arrays["kind"] = array.of_plain(None if it is None else it.kind.value for it in verdicts)
    try:
        if name == _INSERT_SOON:
            [_, inserted] = await fetch_tuples(conn, [("session/commit_soon", {}), ("inbox/insert", arrays)])
        else:
            inserted = await query(conn, name, **arrays, **more)
    except psycopg.DataError as error:
        # The server's own message may quote the value.
        raise MalformedMessage(f"the inbox cannot store it: {safe_text(error)}") from None
    return [Inserted(*row) for row in inserted]


def claim_many_command(
    ids: Sequence[UUID],
    again: Sequence[UUID],
    lease: timedelta,
    max_attempts: int = UNLIMITED_ATTEMPTS,
    *,
    ordered: bool = False,
    alone: bool = False,
) -> Command:
    """Return the statement that claims rows: those ``again``, and those of ``ids`` that were never tried.

    ``ordered``: only messages whose turn it is, for an ordered subscription. ``alone``: also return the others
    that were tried, unclaimed and marked as ``tried``.
    """
    name = "inbox/claim_many+in_turn" if ordered else "inbox/claim_many"
    which = {"ids": array.of_plain(ids), "again": array.of_plain(again), "alone": alone}
    return name, {**which, **_claim_values(lease, max_attempts)}


def _claim_values(lease: timedelta, max_attempts: int) -> dict[str, Any]:
    exhausted = unanswered(max_attempts).reason
    return {
        "token": claim_token(),
        "lease": lease,
        "max_attempts": max_attempts,
        "exhausted": exhausted,
        "expired": EXPIRED,
    }


def ids_and_tokens(claims: Sequence[ClaimedMessage]) -> dict[str, str]:
    """Return the parameters of a statement that fences each claim by its token."""
    return {
        "ids": array.of_plain(claim.row.message_id for claim in claims),
        "tokens": array.of_plain(claim.token for claim in claims),
    }


def _rejected(reason: str, kind: DeadLetterClass) -> DeadLetter:
    return TooLate(reason, kind) if reason == EXPIRED else DeadLetter(reason, kind)


def claimed(command: Command, row: Mapping[str, Any], since: float) -> ClaimedMessage:
    """Return the claim of a row that a statement has claimed."""
    reason = row["dead_letter_reason"]
    rejected = None if reason is None else _rejected(reason, DeadLetterClass(row["dead_letter_class"]))
    columns = {name: row[name] for name in _WRITERS}
    columns["originals"] = columns["originals"] or NO_ORIGINALS
    inbox_row = InboxRow(**columns, rejected=rejected)
    return ClaimedMessage(
        command[1]["token"], inbox_row, row["attempts"], row["requeues"], since, row["received_at"], row["probe"]
    )
