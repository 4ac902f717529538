"""Killed, paused or cut off at every step of a task: its effect once, its row ended, nothing left over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import psutil
import psycopg
import pytest

from relay.failpoints import TASK_POINTS, FailpointAction, arm, reached
from tasks import schedule
from tests.acceptance import task_effects
from tests.acceptance.task_effects import Job, coroutine, loose, short
from tests.chaos.crashing import CrashFleet, killed, resume
from tests.sampling import marked
from tests.waiting import wait_for

MODULES = "tasks.actors,consumer.actors,tests.acceptance.task_effects"
#: A function and a coroutine whose effect commits with the end of the task, and a function that has none there.
KINDS = {
    "after_task_enqueue": (short,),
    "after_task_claim": (short, coroutine),
    "after_task_answer": (short, loose),
    "after_mark_before_handler_commit": (short, coroutine),
}
EACH = 5
ROWS = "SELECT id, status, attempts, finished_at FROM task_outbox ORDER BY seq"
EFFECTS = "SELECT task_id, attempt FROM task_effects ORDER BY id"
UNFINISHED = "SELECT count(*) FROM task_outbox WHERE status <> 'completed'"


@dataclass
class TaskFleet(CrashFleet):
    """A fleet whose work is tasks."""

    table: str = task_effects.TABLE
    effective: list[UUID] = field(default_factory=list)

    def commit(self, kind: object) -> None:
        """Commit tasks of a kind."""
        with psycopg.connect(self.urls["sea"]) as connection:
            ids = [schedule(connection, kind, Job(n=n)) for n in range(EACH)]
        if kind is not loose:
            self.effective += ids

    def check(self) -> None:
        """Wait until every task has ended; each has had its effect once."""
        wait_for("all are done", lambda: self.query("sea", UNFINISHED) == [(0,)], 60)
        assert Counter(id for id, _ in self.query("sea", EFFECTS)) == Counter(self.effective)

    def end_state(self) -> list[object]:
        return [self.query("sea", ROWS), self.query("sea", EFFECTS)]


@pytest.fixture(scope="module")
def fleet(server_root: Path) -> Iterator[TaskFleet]:
    directory = server_root / "task-failpoints"
    (directory / "points").mkdir(parents=True)
    modules = {"RELAY_ACTOR_MODULES": MODULES}
    with TaskFleet(directory, failpoints=directory / "points", variables=modules) as fleet:
        fleet.begin()
        yield fleet


CASES = [(point, action, kind) for point, kinds in KINDS.items() for action in FailpointAction for kind in kinds]


def test_every_point_is_played() -> None:
    assert TASK_POINTS.keys() <= KINDS.keys()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("point", "action", "kind"), marked(CASES), ids=lambda it: getattr(it, "__name__", str(it))
)
def test_whatever_happens_at_a_point_changes_nothing(
    fleet: TaskFleet, point: str, action: FailpointAction, kind: object
) -> None:
    arm(fleet.failpoints, point, action)
    fleet.commit(kind)
    pid = wait_for(f"{point} is passed", lambda: reached(fleet.failpoints, point))
    match action:
        case FailpointAction.KILL:
            fleet.replace(killed(fleet))
        case FailpointAction.PAUSE:
            wait_for("it is paused", lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
            fleet.check()
            before = fleet.end_state()
            resume(fleet, pid)
            assert fleet.end_state() == before
        case FailpointAction.LOST_REPLY:
            pass
    # The fleet works as before.
    fleet.commit(kind)
    fleet.check()
    assert [worker.poll() for worker in fleet.workers] == [None, None]
