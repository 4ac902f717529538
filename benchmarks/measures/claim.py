"""Whether claiming a batch stays as fast while the table grows."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Final

import psycopg

from benchmarks.figures import Curve, Reference, Row
from benchmarks.stage import Stage
from benchmarks.workload import fill, fill_published
from relay.adapters.postgres.outbox import PostgresOutboxAdapter
from relay.adapters.postgres.pool import Pool
from relay.domain.ordering import Shard

_BATCH: Final = 300
_BYTES: Final = 4 * 1024**2
_CLAIMS: Final = 30


class _Back(Exception):
    """No error: it makes the adapter roll the claim back."""


def run(stage: Stage) -> Iterator[Row | Curve]:
    """Time claims at growing backlogs in one table that also holds published events.

    The rounds of a size follow each other, as the table grows only once.
    """
    stage.rest()
    url, sizes = stage.database("claims"), stage.sizes.unpublished
    found: dict[int, list[float]] = {}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE outbox_events")
        fill_published(connection, stage.sizes.published)
        have = 0
        for size in sizes:
            fill(connection, size - have, 200)
            have = size
            connection.execute("VACUUM ANALYZE outbox_events")
            found[size] = [asyncio.run(_claims(url)) for _ in range(stage.rounds)]
            stage.say(f"claim: {size:,} unpublished: {statistics.median(found[size]):.2f} ms")
    smallest, largest = sizes[0], sizes[-1]
    reference = Reference(f"claim of {smallest:,}", found[smallest])
    measure = f"claim of {_BATCH} of {largest:,} unpublished, {stage.sizes.published:,} published beside"
    yield Row(measure=measure, unit="ms", runs=found[largest], reference=reference, at_most=1.3)
    line = [(float(size), statistics.median(runs)) for size, runs in found.items()]
    yield Curve(
        title=f"Claim of {_BATCH} events as the backlog grows",
        x="events waiting",
        y="milliseconds",
        lines={"claim": line},
    )


async def _claims(url: str) -> float:
    """Median milliseconds from nothing to the rows, of claims that are undone."""
    pool = Pool(url, max_size=1, application_name="bench-claim")
    await pool.open()
    outbox = PostgresOutboxAdapter(pool.connection)
    try:
        return 1e3 * statistics.median([await _claim(outbox) for _ in range(_CLAIMS)])
    finally:
        await pool.close()


async def _claim(outbox: PostgresOutboxAdapter) -> float:
    seconds, count = 0.0, 0
    start = time.perf_counter()
    with contextlib.suppress(_Back):
        async with outbox.find_unpublished(Shard(0, 2).lanes, _BATCH, _BYTES) as claim:
            seconds, count = time.perf_counter() - start, len(claim.rows)
            raise _Back
    # Each lane gives an equal share, and a small backlog may not have it in all of them.
    if count < 0.8 * _BATCH:
        raise SystemExit(f"{count} events were claimed")
    return seconds
