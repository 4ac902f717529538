"""(b) The ceiling: one process, rows claimed as text, one write per batch, one update per batch, two in turn.

No order, no ledger, no checks, no time-outs: what a relay could do if it promised nothing.
"""

from __future__ import annotations

import asyncio

import psycopg

from benchmarks.reference.wire import Wire

# Ordered as the table's index of ready rows: nobody needs this order here, but it is the cheapest.
_CLAIM = """
SELECT id::text, event_type, event_version::text, payload::text FROM outbox_events
WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL
ORDER BY CASE WHEN partition_key = '' THEN -1 ELSE hashtext(partition_key) & 63 END, seq
LIMIT 300 FOR UPDATE SKIP LOCKED
"""
_MARK = """
UPDATE outbox_events SET published_at = now(), publish_attempts = publish_attempts + 1 WHERE id = ANY (%s::uuid[])
"""


async def drain(database_url: str, nats_url: str) -> int:
    """Publish every unpublished event; returns how many there were."""
    wire = await Wire.connect(nats_url)
    try:
        # Two loops with a connection each: while one waits for the broker the other talks to the database.
        return sum(await asyncio.gather(*(_loop(database_url, wire) for _ in range(2))))
    finally:
        await wire.close()


async def _loop(database_url: str, wire: Wire) -> int:
    total = 0
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        while rows := await (await connection.execute(_CLAIM)).fetchall():
            await wire.publish(
                (f"bench.event.{name}.v{version}", identity, payload.encode())
                for identity, name, version, payload in rows
            )
            await connection.execute(_MARK, [[row[0] for row in rows]])
            await connection.commit()
            total += len(rows)
    return total
