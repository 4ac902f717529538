"""Backlogs of the context that only publishes, and how long it takes to empty them.

The clock starts at the commit of a backlog, so a fleet may run before it. It stops when the last row is settled.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

import psycopg

from benchmarks.stream import jetstream, until_stored
from benchmarks.turns import wait_until
from benchmarks.workload import TEXT, fill

STREAM: Final = "BENCH_EVENTS"
#: Counted by the ledger: a query for waiting rows would read every row that was published under an old snapshot.
_SETTLED: Final = "SELECT count(*) FROM outbox_events WHERE published_stream = %s AND published_seq > %s"

#: A loop that publishes everything there is, given the addresses of database and broker; returns how many.
Loop = Callable[[str, str], Awaitable[int]]


async def clear(url: str, nats_url: str) -> None:
    """Empty the table, then the stream: in this order reconciliation finds no loss."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE outbox_events")
    async with jetstream(nats_url) as js:
        await js.purge_stream(STREAM)


async def drain_by_fleet(url: str, nats_url: str, count: int, keys: int, text: str = TEXT) -> float:
    """Events per second of the fleet that runs.

    The stream is watched while it fills, which costs the database nothing, and the table at the end.
    """
    return await until_out(url, nats_url, count, lambda: commit(url, count, keys, text))


async def until_out(url: str, nats_url: str, count: int, begin: Callable[[], float] = time.perf_counter) -> float:
    """Events per second, of so many that somebody commits from now on. ``begin`` returns when it has committed."""
    async with jetstream(nats_url) as js:
        before = (await js.stream_info(STREAM)).state
        start = begin()
        await until_stored(js, STREAM, before.messages + count)
    with psycopg.connect(url, autocommit=True) as connection:
        ours = (STREAM, before.last_seq)
        wait_until("every event is settled", lambda: connection.execute(_SETTLED, ours).fetchone() == (count,))
    return count / (time.perf_counter() - start)


async def drain_by_loop(url: str, nats_url: str, count: int, keys: int, loop: Loop) -> float:
    """Events per second of a loop."""
    start = commit(url, count, keys)
    done = await loop(url, nats_url)
    seconds = time.perf_counter() - start
    if done != count:
        raise SystemExit(f"{done} of {count} events were published")
    return count / seconds


def commit(url: str, count: int, keys: int, text: str = TEXT) -> float:
    """Commit a backlog at once; returns when."""
    with psycopg.connect(url) as connection:
        fill(connection, count, keys, text)
        connection.commit()
        return time.perf_counter()
