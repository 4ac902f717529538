"""What a fleet costs that has nothing to do."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial

import psutil

from benchmarks.figures import Row
from benchmarks.layouts import IDLE
from benchmarks.stage import Stage
from benchmarks.turns import take_turns


def run(stage: Stage) -> Iterator[Row]:
    """Measure the share of a core of our processes and, for information, of the servers."""
    ours: list[float] = []
    servers: list[float] = []

    def watch() -> float:
        fleet = stage.fleet(IDLE)
        time.sleep(min(3.0, stage.sizes.idle))  # what processes do when they start is not idleness
        roots = [psutil.Process(server.pid) for server in stage.stack.servers]
        families = {"ours": fleet.processes, "servers": [each for root in roots for each in _family(root)]}
        before = {name: _cpu(family) for name, family in families.items()}
        start = time.perf_counter()
        time.sleep(stage.sizes.idle)
        seconds = time.perf_counter() - start
        spent = {name: 100 * (_cpu(family) - before[name]) / seconds for name, family in families.items()}
        ours.append(spent["ours"])
        servers.append(spent["servers"])
        return spent["ours"]

    take_turns(stage, "idle", "% of a core", {"scheduler, 2 workers, 3 contexts": watch})
    row = partial(Row, unit="% of a core")
    yield row(measure="idle fleet: scheduler, 2 workers, 3 contexts", runs=ours, at_most=5)
    yield row(measure="the servers under it", runs=servers)


def _family(root: psutil.Process) -> list[psutil.Process]:
    return [root, *root.children(recursive=True)]


def _cpu(family: Iterable[psutil.Process]) -> float:
    """Seconds of processor time; of servers' processes that came and went meanwhile nothing is known."""
    total = 0.0
    for process in family:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
