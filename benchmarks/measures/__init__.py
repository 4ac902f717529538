"""What is measured: one module for each, in the order in which they share fleets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.figures import Curve, Row
from benchmarks.measures import (
    archive,
    brake,
    claim,
    consume,
    drain,
    fairness,
    footprint,
    idle,
    insert,
    latency,
    lists,
    memory,
    microdao,
    sizes,
    snapshot,
    start,
    tasks,
)
from benchmarks.stage import Stage

Measure = Callable[[Stage], Iterator[Row | Curve]]

MEASURES: Final[dict[str, Measure]] = {
    "insert": insert.run,
    "brake": brake.run,
    "microdao": microdao.run,
    "drain": drain.run,
    "fairness": fairness.run,
    "sizes": sizes.run,
    "latency": latency.run,
    "consume": consume.run,
    "tasks": tasks.run,
    "idle": idle.run,
    "footprint": footprint.run,
    "start": start.run,
    "claim": claim.run,
    "snapshot": snapshot.run,
    "memory": memory.run,
    "archive": archive.run,
    "lists": lists.run,
}
