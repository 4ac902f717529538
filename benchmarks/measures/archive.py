"""How fast rows leave for the archive, whether the table keeps its size, and what publishing loses meanwhile."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import psycopg

from benchmarks import backlog
from benchmarks.figures import Reference, Row
from benchmarks.layouts import PUBLISHING
from benchmarks.stage import Stage
from benchmarks.turns import Case, take_turns
from benchmarks.workload import fill, fill_old
from relay.adapters.coldstore import FolderStore
from relay.adapters.postgres.archive import PostgresArchive
from relay.adapters.postgres.pool import Pool
from relay.commands.archive import ArchiveRows
from relay.commands.reconcile import AuditedStream
from relay.domain.operators import Operator

_EVENTS: Final = "events/s"
_ROWS: Final = "rows/s"
_AFTER: Final = timedelta(days=90)
#: Events of a steady load, committed at once, and how often.
_BURST: Final = 200
_EVERY_S: Final = 0.05
_SIZE: Final = "SELECT pg_total_relation_size('outbox_events')"

#: Publishes something; returns events a second.
Publish = Callable[[str], float]


def run(stage: Stage) -> Iterator[Row]:
    """Measure runs for themselves, then what is published with a run beside it and without."""
    count = stage.sizes.archived
    rates, sizes = zip(*(_alone(stage) for _ in range(stage.rounds)), strict=True)
    stage.say(f"archive: {', '.join(f'{rate:,.0f}' for rate in rates)} {_ROWS}")
    yield Row(measure=f"archive {count:,} events", unit=_ROWS, runs=rates, at_least=20_000)
    once = Reference("filled once", [size[0] for size in sizes])
    measure = "the outbox, archived, vacuumed and filled again"
    yield Row(measure=measure, unit="bytes", runs=[size[1] for size in sizes], reference=once, at_most=1.1)
    yield from _beside(stage, f"{_BURST / _EVERY_S:,.0f} events/s", partial(steadily, stage), 0.9)
    drain = partial(at_once, stage)
    yield from _beside(stage, f"drain {stage.sizes.events:,} events", drain, None)


class _Weekly:
    """A stream that keeps messages for a week, as production streams do."""

    async def state(self, _stream: str) -> AuditedStream:
        week = timedelta(days=7)
        return AuditedStream(first_seq=1, last_seq=1, created=None, max_age=week, duplicate_window=week)

    async def stored(self, *_: object) -> list[object]:  # type: ignore[override]
        return []


def _alone(stage: Stage) -> tuple[float, tuple[float, float]]:
    """Rows a second, and the bytes of a table that was filled, and after its archive was filled again."""
    stage.rest()
    url, count = stage.database("archive"), stage.sizes.archived
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE outbox_events")
        fill_old(connection, count)
        connection.execute("VACUUM ANALYZE outbox_events")
        [once] = connection.execute(_SIZE).fetchone() or [0]
        rate = _archive(url, lambda: True)
        for _ in range(2):  # as autovacuum does: pages of indexes that one empties are free from the next on
            connection.execute("VACUUM outbox_events")
        fill_old(connection, count)
        [twice] = connection.execute(_SIZE).fetchone() or [0]
    return rate, (float(once), float(twice))


def _archive(url: str, go_on: Callable[[], bool]) -> float:
    """Archive what there is; return rows a second."""
    with tempfile.TemporaryDirectory(prefix="jetrelay-bench-cold-") as root:
        return asyncio.run(_run(url, Path(root), go_on))


async def _run(url: str, root: Path, go_on: Callable[[], bool]) -> float:
    pool = Pool(url, max_size=2, application_name="bench-archive")
    await pool.open()
    tables = PostgresArchive(pool.connection, "bench")
    rows = ArchiveRows("bench", _AFTER, tables, FolderStore(root), _Weekly(), lambda _fact: None)
    start = time.perf_counter()
    try:
        batches = (await rows.run(Operator("bench"), go_on)).batches
        return sum(batch.rows for batch in batches) / (time.perf_counter() - start)
    finally:
        await pool.close()


# --- beside those who publish ---


def _beside(stage: Stage, what: str, publish: Publish, at_least: float | None) -> Iterator[Row]:
    archived: list[float] = []
    cases: dict[str, Case] = {
        "without": lambda: publish(prepared(stage)),
        "beside a run": lambda: _with_run(prepared(stage), publish, archived),
    }
    runs = take_turns(stage, f"archive, {what}", _EVENTS, cases)
    without = Reference("without", runs["without"])
    measure = f"{what} beside a run of the archive"
    yield Row(measure=measure, unit=_EVENTS, runs=runs["beside a run"], reference=without, at_least=at_least)
    yield Row(measure="what it archives meanwhile", unit=_ROWS, runs=archived)


def prepared(stage: Stage) -> str:
    """A fleet at work on a table full of old events."""
    url = stage.fleet(PUBLISHING).url("bench")
    asyncio.run(backlog.clear(url, stage.nats_url))
    with psycopg.connect(url, autocommit=True) as connection:
        fill_old(connection, stage.sizes.archived)
        connection.execute("VACUUM ANALYZE outbox_events")
    asyncio.run(backlog.drain_by_fleet(url, stage.nats_url, 1, 1))
    return url


def _with_run(url: str, publish: Publish, archived: list[float]) -> float:
    """Publish while another thread archives, as long as both have something to do."""
    published = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(_archive, url, lambda: not published.is_set())
        rate = publish(url)
        published.set()
        archived.append(run.result())
    return rate


def at_once(stage: Stage, url: str) -> float:
    return asyncio.run(backlog.drain_by_fleet(url, stage.nats_url, stage.sizes.events, 200))


def steadily(stage: Stage, url: str) -> float:
    """Commit bursts at fixed times, as many events as in a drain; return events a second until all are out."""
    bursts = max(1, stage.sizes.events // _BURST)

    def insert() -> None:
        begin = time.perf_counter()
        with psycopg.connect(url) as connection:
            for number in range(bursts):
                time.sleep(max(0.0, begin + number * _EVERY_S - time.perf_counter()))
                fill(connection, _BURST, 200)
                connection.commit()

    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(insert)
        rate = asyncio.run(backlog.until_out(url, stage.nats_url, bursts * _BURST))
        run.result()
    return rate
