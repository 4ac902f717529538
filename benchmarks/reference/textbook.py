"""(a) The textbook relay loop of the outbox pattern: publish, wait, update, row by row."""

from __future__ import annotations

import nats
import psycopg

_CLAIM = """
SELECT id::text, event_type, event_version, payload::text FROM outbox_events
WHERE published_at IS NULL ORDER BY occurred_at LIMIT 100 FOR UPDATE SKIP LOCKED
"""


async def drain(database_url: str, nats_url: str) -> int:
    """Publish every unpublished event; returns how many there were."""
    client = await nats.connect(nats_url)
    jetstream = client.jetstream()
    total = 0
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        while rows := await (await connection.execute(_CLAIM)).fetchall():
            for identity, name, version, payload in rows:
                subject = f"bench.event.{name}.v{version}"
                await jetstream.publish(subject, payload.encode(), headers={"Nats-Msg-Id": identity})
                await connection.execute(
                    "UPDATE outbox_events SET published_at = now(), publish_attempts = publish_attempts + 1 "
                    "WHERE id = %s",
                    [identity],
                )
            await connection.commit()
            total += len(rows)
    await client.close()
    return total
