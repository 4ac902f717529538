"""Claims that begin at marks while many write, change their minds, and operators kill and retry events."""

from __future__ import annotations

import asyncio
import random

import psycopg
import pytest

from tests.integration.low_water_support import marks_used
from tests.integration.publishing import ALL, Relay, event, query
from tests.integration.test_publish_path import check_ledger

pytestmark = pytest.mark.anyio

PRODUCERS, TRANSACTIONS, KEYS = 4, 120, 12
KILL = """
UPDATE outbox_events SET dead_at = now(), publish_attempts = 3
WHERE id = (SELECT id FROM outbox_events WHERE published_at IS NULL AND dead_at IS NULL
            ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id
"""
RETRY = "UPDATE outbox_events SET dead_at = NULL, publish_attempts = 0 WHERE id = %s"


def produce(relay: Relay, seed: int) -> None:
    """Transactions of several keys, with others between each event and the commit; some are rolled back."""
    dice = random.Random(seed)
    with psycopg.connect(relay.url) as conn:
        for _ in range(TRANSACTIONS):
            # In this order no two wait for each other.
            for key in sorted(dice.sample(range(KEYS), dice.randint(1, 3))):
                relay.outbox.add(conn, event(f"v{key}"))
                conn.execute("SELECT pg_sleep(%s)", [dice.random() / 100])
            conn.rollback() if dice.random() < 0.2 else conn.commit()


def operate(relay: Relay, stop: asyncio.Event) -> int:
    """Kill what waits and retry it a moment later, over and over; returns how often."""
    times = 0
    while not stop.is_set():
        for row in query(relay.url, KILL):
            query(relay.url, "SELECT pg_sleep(0.02)")
            query(relay.url, RETRY, row["id"])
            times += 1
    return times


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_passed_over_and_order_is_kept(
    relay: Relay, eager: None, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    await relay.create_stream()
    commands, done, stop = (
        [relay.command(dead_head_blocks=True) for _ in range(2)],
        asyncio.Event(),
        asyncio.Event(),
    )

    used = marks_used(monkeypatch)

    async def drain(number: int) -> None:
        while not done.is_set():
            await commands[number].drain(ALL)

    drains = [asyncio.create_task(drain(number)) for number in range(2)]
    operator = asyncio.create_task(asyncio.to_thread(operate, relay, stop))
    await asyncio.gather(
        *(asyncio.to_thread(produce, relay, PRODUCERS * seed + number) for number in range(PRODUCERS))
    )
    stop.set()
    assert await operator > 0
    done.set()
    await asyncio.gather(*drains)
    assert max(map(max, used)) > 0
    await relay.drained(commands[0])
    check_ledger(relay, await relay.ids())
