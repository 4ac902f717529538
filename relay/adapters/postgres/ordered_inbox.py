"""The inbox of an ordered subscription: only the head of each key runs (DESIGN §6).

The index idx_inbox_order contains the unfinished messages of each key. The first entry of a key is its head. A
dead head stays in the index and blocks its key until an operator decides, unless the policy is to skip it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from relay.adapters.postgres.inbox import PostgresInboxAdapter, insert
from relay.adapters.postgres.pool import Connection, Pool, query
from relay.adapters.postgres.sql import statement
from relay.domain.ordering import FailedHead
from relay.domain.watermark import DeliveryRange, Watermark
from relay.ports import ClaimedMessage, InboxRow, Inserted

Change = Callable[[Watermark], Watermark]


class OrderedInboxAdapter(PostgresInboxAdapter):
    """The same contract, and the order of keys. All methods raise DatabaseUnreachable.

    The watermark moves under its lock, in the transaction that inserts the rows. So a reader that sees the new
    watermark also sees the rows.
    """

    _ordered = True
    _overdue = "inbox/overdue_ordered"

    def __init__(self, pool: Pool, *, failed_head: FailedHead = "block", **options: Any) -> None:
        super().__init__(pool, **options)
        self._failed_head = failed_head

    async def insert(self, rows: Sequence[InboxRow], *, lasting: bool = True) -> Sequence[Inserted]:
        if not rows:
            return []
        places: dict[UUID, int] = {}
        for row in rows:
            places[row.id] = min(row.stream_seq, places.get(row.id, row.stream_seq))
        numbered = [(row.consumer_seq, row.stream_seq) for row in rows if row.consumer_seq is not None]
        async with self._pool.connection() as conn, conn.transaction():
            mark = await _move(conn, rows[0].subscription, rows[0].stream, lambda mark: mark.received(numbered))
            return await insert(conn, "inbox/insert_ordered", rows, places, mark=mark.stream_seq)

    async def _forget_order(self, subscription: str) -> None:
        """Do nothing: this subscription is ordered."""

    async def mark_dead_lettered(self, claim: ClaimedMessage) -> bool:
        row = claim.row
        parameters = {"message_id": row.message_id, "token": claim.token, "skip": self._failed_head == "skip"}
        parks = self._failed_head == "park" and row.order_key is not None
        async with self._pool.connection() as conn, conn.transaction():
            if parks:
                # The lock keeps batches out: their messages are either parked here or see that the key is parked.
                await _locked(conn, row.subscription, row.stream)
            cursor = await conn.execute(statement("inbox/mark_dead_lettered"), parameters)
            if cursor.rowcount == 1 and parks:
                await conn.execute(statement("inbox/park_key"), {"message_id": row.message_id})
            return cursor.rowcount == 1

    async def promote(self, ids: Sequence[UUID]) -> Sequence[UUID]:
        """Return those of ``ids`` that waited for their turn and may run now; marks them as enqueued."""
        return await self._values("inbox/promote", ids=list(ids))

    async def next_of_keys(self, subscription: str, keys: Sequence[str]) -> Sequence[UUID]:
        """Return the first message of each key, if it may run; marks these messages as enqueued."""
        return await self._values("inbox/next_of_keys", subscription=subscription, order_keys=list(keys))

    async def parked_replies(self, row: InboxRow) -> Sequence[str]:
        """Return the reply subjects of the messages that are parked with the row's key."""
        if self._failed_head != "park":
            return []
        return await self._values("inbox/parked_replies", subscription=row.subscription, order_key=row.order_key)

    async def _values(self, name: str, /, **parameters: Any) -> list[Any]:
        async with self._pool.connection() as conn:
            return [value for (value,) in await query(conn, name, **parameters)]

    async def watermark(self, subscription: str, stream: str) -> Watermark:
        """Return up to where the inbox is known to be complete."""
        async with self._pool.connection() as conn:
            rows = await query(conn, "inbox/watermark", subscription=subscription, stream=stream)
        return _watermark(*rows[0]) if rows else Watermark()

    async def move(self, subscription: str, stream: str, change: Change) -> Watermark:
        """Change the watermark under its lock; returns the new one."""
        async with self._pool.connection() as conn, conn.transaction():
            return await _move(conn, subscription, stream, change)


async def _move(conn: Connection, subscription: str, stream: str, change: Change) -> Watermark:
    """Change the watermark under its lock."""
    before = await _locked(conn, subscription, stream)
    after = change(before)
    if after != before:
        parameters = {
            "subscription": subscription,
            "stream": stream,
            "consumer_seq": after.consumer_seq,
            "stream_seq": after.stream_seq,
            "ahead": json.dumps([asdict(span) for span in after.ahead]),
        }
        await conn.execute(statement("inbox/set_watermark"), parameters)
    return after


async def _locked(conn: Connection, subscription: str, stream: str) -> Watermark:
    place = {"subscription": subscription, "stream": stream}
    while not (rows := await query(conn, "inbox/lock_watermark", **place)):
        await conn.execute(statement("inbox/make_watermark"), place)
    return _watermark(*rows[0])


def _watermark(consumer_seq: int | None, stream_seq: int, ahead: list[dict[str, int]]) -> Watermark:
    return Watermark(consumer_seq, stream_seq, tuple(DeliveryRange(**span) for span in ahead))
