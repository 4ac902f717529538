"""A handler hangs only once the fleet has caught up: what waits for other reasons would wait beside it as well.

On a rig of its own, whose producers are slow: behind other faults a fleet may be busy for minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

import psycopg
import pytest

from chaos import tables
from chaos.faults import FAULTS
from chaos.history import History
from chaos.injections import operators
from chaos.rig import Rig
from chaos.stage import Stage
from chaos.workload import Workload
from tests.waiting import wait_for


@pytest.fixture
def rig(server_root: Path) -> Iterator[Rig]:
    with Rig(server_root / "catching-up", workers=2, seed=1) as rig:
        tables.prepare(rig.urls, seed=1, history=rig.history)
        rig.launch()
        yield rig


def unpublished(rig: Rig) -> int:
    with psycopg.connect(rig.urls["shop"]) as connection:
        row = connection.execute(operators._UNPUBLISHED.encode()).fetchone()
        return int(row[0]) if row else 0


def test_a_handler_hangs_once_the_fleet_has_caught_up(rig: Rig) -> None:
    history = History(rig.history / "workload.jsonl")
    stage = Stage(rig, Random(1), history, 1, catch_up=200.0)
    workers = rig.of_role("worker")
    with ExitStack() as ending:
        workload = ending.enter_context(Workload(rig.urls["shop"], history, seed=1, threads=1, rate=20, batch=20))
        pool = ending.enter_context(ThreadPoolExecutor())
        pause = ending.enter_context(ExitStack())
        for worker in workers:
            worker.freeze()
        try:
            wait_for("much waits for long", lambda: unpublished(rig) > 2 * operators._HARDLY_ANY)
            pause.enter_context(workload.paused())
            caught_up = pool.submit(FAULTS["handler-hang"].prepare or pytest.fail, stage)
            with pytest.raises(TimeoutError):
                caught_up.result(timeout=1)
        finally:
            for worker in workers:
                worker.thaw()
        caught_up.result()
        assert unpublished(rig) <= operators._HARDLY_ANY
    assert stage.notes == []
