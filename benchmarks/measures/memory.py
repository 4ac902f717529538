"""Whether a worker keeps its size, however many events it has seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from benchmarks import backlog
from benchmarks.figures import Curve, Reference, Row
from benchmarks.fleet import Fleet
from benchmarks.layouts import PUBLISHING
from benchmarks.stage import Stage

_DRAINS = 20


def run(stage: Stage) -> Iterator[Row | Curve]:
    """Watch a fresh worker while it publishes: growth in the first tenth is warm-up, later growth is a leak."""
    stage.rest()
    fleet = stage.fleet(PUBLISHING, workers=1)
    url, step = fleet.url("bench"), max(1, stage.sizes.growth // _DRAINS)
    points = [(0.0, _megabytes(fleet))]
    for number in range(1, _DRAINS + 1):
        asyncio.run(backlog.clear(url, stage.nats_url))
        asyncio.run(backlog.drain_by_fleet(url, stage.nats_url, step, 200))
        points.append((float(number * step), _megabytes(fleet)))
    stage.say(f"memory: {points[0][1]:.0f} MB at rest, {points[-1][1]:.0f} MB after {points[-1][0]:,.0f} events")
    row = partial(Row, unit="MB")
    warm = points[_DRAINS // 10]
    yield row(measure="memory of a worker process at rest", runs=[points[0][1]])
    reference = Reference(f"after {warm[0]:,.0f} events", [warm[1]])
    measure = f"the same after {points[-1][0]:,.0f} events"
    yield row(measure=measure, runs=[points[-1][1]], reference=reference, at_most=1.1)
    yield Curve(title="Memory of a worker process", x="events published", y="MB", lines={"resident": points})


def _megabytes(fleet: Fleet) -> float:
    """Resident memory of the largest worker."""
    return max(process.memory_info().rss for process in fleet.workers) / 2**20
