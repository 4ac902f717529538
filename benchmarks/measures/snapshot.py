"""Whether throughput lasts while somebody holds a snapshot open, so that no dead row can be removed."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

import psycopg

from benchmarks import backlog
from benchmarks.figures import Curve, Reference, Row
from benchmarks.layouts import PUBLISHING
from benchmarks.stage import Stage

#: How many drains at the beginning are compared with how many at the end.
_ENDS: Final = 3


def run(stage: Stage) -> Iterator[Row | Curve]:
    """Commit and drain one backlog after the other under an open snapshot."""
    url, count = stage.fleet(PUBLISHING).url("bench"), stage.sizes.events // 10
    asyncio.run(backlog.clear(url, stage.nats_url))
    drain = partial(backlog.drain_by_fleet, url, stage.nats_url, count, 200)
    asyncio.run(drain())
    points: list[tuple[float, float]] = []
    with psycopg.connect(url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM outbox_events")
        begin = time.perf_counter()
        while (minutes := (time.perf_counter() - begin) / 60) < stage.sizes.minutes or len(points) < 2 * _ENDS:
            points.append((minutes, asyncio.run(drain())))
    first, last = ([rate for _, rate in part] for part in (points[:_ENDS], points[-_ENDS:]))
    stage.say(f"snapshot: {statistics.median(first):,.0f}, then {statistics.median(last):,.0f} events/s")
    measure = f"throughput under a snapshot held for {points[-1][0]:.1f} minutes"
    reference = Reference(f"the first {_ENDS} drains", first)
    yield Row(measure=measure, unit="events/s", runs=last, reference=reference, at_least=0.8)
    yield Curve(
        title="Throughput while a snapshot is held open",
        x="minutes",
        y="events per second",
        lines={"2 workers": points},
    )
