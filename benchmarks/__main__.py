"""``make bench``: how fast a backlog drains, against the textbook loop on the same servers."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import psycopg

from benchmarks.reference import textbook
from relay import Event, Outbox
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.publisher import NatsJetStreamPublisher
from relay.adapters.postgres.migrations import upgrade
from relay.adapters.postgres.outbox import PostgresOutboxAdapter
from relay.adapters.postgres.pool import create_pool
from relay.commands.publish import PublishConfig, PublishOutboxEvents
from relay.devstack import DevStack
from relay.domain.ordering import Shard

STREAM, SUBJECTS = "BENCH_EVENTS", "bench.event.>"


def fill(url: str, count: int, keys: int) -> None:
    """Commit a backlog of events of 350 bytes over ``keys`` keys."""
    outbox = Outbox("bench")
    payload = {"text": "x" * 200}
    with psycopg.connect(url) as connection:
        for start in range(0, count, 1000):
            numbers = range(start, min(start + 1000, count))
            outbox.add_many(
                connection,
                [
                    Event(event_type="made", aggregate_type="thing", aggregate_id=f"t{n % keys}", payload=payload)
                    for n in numbers
                ],
            )
            connection.commit()


async def relay_drain(database_url: str, nats_url: str) -> int:
    """Drain by CMD-050, one process, all lanes."""
    pool = create_pool(database_url, max_size=2, application_name="bench")
    await pool.open()
    connection = NatsConnection(nats_url)
    config = PublishConfig(context="bench", subject="{context}.event.{name}.v{version}", envelope="raw")
    command = PublishOutboxEvents(
        config, PostgresOutboxAdapter(pool), NatsJetStreamPublisher(connection), lambda _fact: None
    )
    try:
        return await command.drain(Shard(0, 1))
    finally:
        await connection.close()
        await pool.close()


async def measure(
    stack: DevStack, url: str, drain: Callable[[str, str], Awaitable[int]], events: int, keys: int
) -> float:
    """Events per second of one drain, on an empty table and stream."""
    with psycopg.connect(url) as connection:
        connection.execute("TRUNCATE outbox_events")
    client = await nats.connect(stack.nats.url)
    await client.jetstream().purge_stream(STREAM)
    await client.close()
    fill(url, events, keys)
    start = time.perf_counter()
    done = await drain(url, stack.nats.url)
    if done != events:
        raise SystemExit(f"{done} of {events} events were drained")
    return done / (time.perf_counter() - start)


async def run(stack: DevStack, events: int, rounds: int) -> dict[str, float]:
    """Medians of each case; the cases take turns, so that a busy moment of the machine hits all."""
    url = stack.postgres.create_database("bench")
    upgrade(url)
    client = await nats.connect(stack.nats.url)
    await client.jetstream().add_stream(name=STREAM, subjects=[SUBJECTS])
    await client.close()
    cases = {
        "textbook loop": (textbook.drain, events // 10, 200),
        "relay, 200 keys": (relay_drain, events, 200),
        "relay, 10 hot keys": (relay_drain, events, 10),
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (drain, count, keys) in cases.items():
            rates[name].append(await measure(stack, url, drain, count, keys))
    return {name: statistics.median(values) for name, values in rates.items()}


def main() -> None:
    """Parse the command line, measure, print a table and JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="jetrelay-bench-"))
    directory.chmod(0o711)
    with DevStack(directory) as stack:
        rates = asyncio.run(run(stack, arguments.events, arguments.rounds))
    base = rates["textbook loop"]
    for name, rate in rates.items():
        sys.stdout.write(f"{name:<22} {rate:>9,.0f} events/s   {rate / base:>5.1f} x\n")
    sys.stdout.write(json.dumps({name: rate / base for name, rate in rates.items()}) + "\n")


if __name__ == "__main__":
    main()
