"""Background tasks in real workers: each takes effect once, whatever is flushed and killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from relay.concurrency import LOOP_ENDED
from tasks import schedule
from tests.acceptance import task_effects
from tests.acceptance.fleet import Fleet
from tests.acceptance.task_effects import Job, ends_its_loop, fleeting, plain, report
from tests.waiting import wait_for

MODULES = "tasks.actors,consumer.actors,tests.acceptance.task_effects"

StartFleet = Callable[..., Fleet]


def start(start_fleet: StartFleet, **variables: str) -> Fleet:
    fleet = start_fleet(variables={"RELAY_ACTOR_MODULES": MODULES, **variables})
    fleet.query("sea", task_effects.TABLE)
    return fleet


def commit(fleet: Fleet, *jobs: Job, task: Any = plain, **options: Any) -> list[UUID]:
    with psycopg.connect(fleet.urls["sea"]) as connection:
        return [schedule(connection, task, job, **options) for job in jobs]


def count(fleet: Fleet, status: str) -> int:
    return int(fleet.query("sea", "SELECT count(*) FROM task_outbox WHERE status = %s", status)[0][0])


def effects(fleet: Fleet) -> Counter[UUID]:
    return Counter(id for (id,) in fleet.query("sea", "SELECT task_id FROM task_effects"))


def order(fleet: Fleet) -> list[int]:
    """Which jobs took effect, in the order in which they began to."""
    return [n for (n,) in fleet.query("sea", "SELECT n FROM task_effects ORDER BY id")]


def running(fleet: Fleet) -> int:
    sql = "SELECT count(*) FROM task_outbox WHERE claim_token IS NOT NULL AND claimed_until > now()"
    return int(fleet.query("sea", sql)[0][0])


def test_redis_flushed_and_a_worker_killed_under_two_thousand_tasks_changes_nothing(
    start_fleet: StartFleet,
) -> None:
    fleet = start(start_fleet, RELAY_TASK_WINDOW="5000")
    fleet.scheduler()
    fleet.worker(queues=("relay-upkeep",))
    ids = commit(fleet, *(Job(n=n) for n in range(2_000)))
    wait_for("all are in Redis", lambda: fleet.queue_length("relay-task-default") == len(ids))
    workers = [fleet.worker(), fleet.worker()]
    wait_for("some are done", lambda: count(fleet, "completed") > 100)
    fleet.flush()
    left = len(ids) - count(fleet, "completed")
    assert left > 500
    wait_for("more are done", lambda: count(fleet, "completed") > len(ids) - left + 200)
    fleet.flush()
    fleet.kill(workers[0])
    wait_for("all are done", lambda: count(fleet, "completed") == len(ids), seconds=180)
    assert effects(fleet) == Counter(dict.fromkeys(ids, 1))


def test_a_worker_killed_in_the_middle_of_a_task_leaves_no_effect_and_another_runs_it(
    start_fleet: StartFleet,
) -> None:
    fleet = start(start_fleet)
    fleet.scheduler()
    worker = fleet.worker()
    [id] = commit(fleet, Job(crash=True))
    wait_for("it took its worker along", lambda: worker.poll() is not None)
    assert fleet.query("sea", "SELECT attempts FROM task_outbox") == [(1,)]
    fleet.worker()
    wait_for("it is done", lambda: count(fleet, "completed") == 1)
    assert fleet.query("sea", "SELECT task_id, attempt FROM task_effects") == [(id, 2)]


def test_a_worker_paused_in_the_middle_of_a_task_is_fenced_off_and_another_runs_it(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    fleet, gate = start(start_fleet), tmp_path / "gate"
    gate.touch()
    fleet.scheduler()
    paused = fleet.worker()
    [id] = commit(fleet, Job(until_gone=str(gate)))
    wait_for("it runs", lambda: running(fleet) == 1)
    fleet.freeze(paused)
    gate.unlink()
    fleet.worker()
    wait_for("another has done it", lambda: count(fleet, "completed") == 1)
    done = fleet.query("sea", "SELECT attempts, finished_at FROM task_outbox")
    fleet.thaw(paused)
    assert fleet.stop(paused, 60) == 0, "it has done the rest of what it was at"
    assert fleet.query("sea", "SELECT task_id, attempt FROM task_effects") == [(id, 2)]
    assert fleet.query("sea", "SELECT attempts, finished_at FROM task_outbox") == done


def test_a_worker_claims_what_it_has_fetched_and_gives_back_what_it_has_not_begun(start_fleet: StartFleet) -> None:
    fleet = start(start_fleet)
    fleet.scheduler()
    worker = fleet.worker(threads=1)
    ids = commit(fleet, *(Job(n=n, seconds=0.02) for n in range(300)))
    wait_for("its only thread has claimed several", lambda: running(fleet) > 2)
    assert fleet.stop(worker, 60) == 0
    assert running(fleet) == 0
    assert 0 < count(fleet, "completed") < len(ids)
    assert fleet.query("sea", "SELECT count(*) FROM task_outbox WHERE started_at IS NOT NULL") == [
        (count(fleet, "completed"),)
    ]
    fleet.worker()
    wait_for("all are done", lambda: count(fleet, "completed") == len(ids), seconds=60)
    assert effects(fleet) == Counter(dict.fromkeys(ids, 1))
    assert fleet.query("sea", "SELECT DISTINCT attempts FROM task_outbox") == [(1,)]


def test_a_function_that_hangs_takes_no_thread_from_the_others(start_fleet: StartFleet, tmp_path: Path) -> None:
    fleet, gate = start(start_fleet), tmp_path / "gate"
    gate.touch()
    fleet.scheduler()
    fleet.worker(threads=2)
    hanging = commit(fleet, *(Job(until_gone=str(gate)) for _ in range(2)), task=fleeting)
    wait_for("their time was up", lambda: fleet.query("sea", TIMED_OUT) == [(2,)])
    others = commit(fleet, *(Job(n=n) for n in range(10)))
    wait_for("the others are done", lambda: effects(fleet) == Counter(dict.fromkeys(others, 1)))
    gate.unlink()
    wait_for("all are done", lambda: count(fleet, "completed") == 12)
    assert effects(fleet) == Counter(dict.fromkeys([*hanging, *others], 1))


TIMED_OUT = "SELECT count(*) FROM task_outbox WHERE last_error LIKE 'time-out%%' OR attempts > 1"


def test_what_is_rolled_back_never_runs_and_what_is_delayed_waits(start_fleet: StartFleet) -> None:
    fleet = start(start_fleet)
    fleet.scheduler()
    fleet.worker()
    with psycopg.connect(fleet.urls["sea"]) as connection:
        never = schedule(connection, plain, Job())
        connection.rollback()
    [delayed] = commit(fleet, Job(), delay=timedelta(seconds=2))
    [prompt] = commit(fleet, Job())
    wait_for("both are done", lambda: count(fleet, "completed") == 2)
    assert effects(fleet) == {delayed: 1, prompt: 1}
    assert never not in effects(fleet)
    waited = dict(fleet.query("sea", "SELECT id, started_at - created_at FROM task_outbox"))
    assert waited[delayed] >= timedelta(seconds=1.9)
    assert order(fleet) == [0, 0]


def test_an_urgent_task_overtakes_those_that_wait(start_fleet: StartFleet) -> None:
    fleet = start(start_fleet, RELAY_TASK_WINDOW="2")
    fleet.scheduler()
    fleet.worker(threads=1)
    commit(fleet, *(Job(n=n, seconds=0.05) for n in range(60)), priority=90)
    wait_for("some have run", lambda: len(order(fleet)) > 2)
    commit(fleet, *(Job(n=100 + n, seconds=0.05) for n in range(5)), priority=0)
    wait_for("all are done", lambda: count(fleet, "completed") == 65)
    ran = order(fleet)
    last_urgent = max(ran.index(100 + n) for n in range(5))
    assert last_urgent < 40, ran
    # Two per thread are fetched ahead, so the order is not exact.
    assert sum(a > b for a, b in pairwise(ran)) < 15, ran


def test_queues_are_split_over_fleets(start_fleet: StartFleet) -> None:
    fleet = start(start_fleet)
    fleet.scheduler()
    fleet.worker(queues=("relay-upkeep", "relay-task-reports"))
    [ordinary] = commit(fleet, Job())
    [slow] = commit(fleet, Job(), task=report)
    wait_for("the report is done", lambda: effects(fleet) == {slow: 1})
    wait_for("the other is in Redis", lambda: fleet.queue_length("relay-task-default") == 1)
    fleet.worker(queues=("relay-task-default",))
    wait_for("the other is done", lambda: effects(fleet) == {slow: 1, ordinary: 1})


def test_a_task_that_fails_for_good_is_reported_and_can_be_run_again(start_fleet: StartFleet) -> None:
    fleet = start(start_fleet)
    fleet.scheduler()
    fleet.worker()
    [id] = commit(fleet, Job(), task="broken")
    wait_for("it has failed", lambda: count(fleet, "failed") == 1)
    wait_for("there is an alert", lambda: "TaskFailed" in fleet.log("worker"))
    [found] = json.loads(fleet.relay("tasks", "list", "--context", "sea", "--json"))
    assert (found["id"], found["status"], found["attempts"]) == (str(id), "failed", 2)
    [(first,)] = fleet.query("sea", "SELECT finished_at FROM task_outbox")
    fleet.relay("tasks", "retry", str(id), "--context", "sea")
    wait_for("it has failed again", lambda: fleet.query("sea", _FINISHED, first) == [(2, "failed")])


_FINISHED = "SELECT attempts, status FROM task_outbox WHERE finished_at > %s"


# --- without Redis ---


@pytest.fixture
def without_redis(start_fleet: StartFleet) -> Fleet:
    fleet = start(start_fleet)
    fleet.variables |= {"REDIS_URL": "redis://127.0.0.1:1/0", "NATS_URL": "nats://127.0.0.1:1"}
    return fleet


def test_tasks_run_in_process_and_a_stop_waits_for_those_under_way(without_redis: Fleet, tmp_path: Path) -> None:
    fleet, gate = without_redis, tmp_path / "gate"
    gate.touch()
    worker = fleet.task_worker("--threads", "4")
    ids = commit(fleet, *(Job(n=n) for n in range(200)))
    wait_for("all are done", lambda: count(fleet, "completed") == 200)
    assert effects(fleet) == Counter(dict.fromkeys(ids, 1))
    commit(fleet, *(Job(until_gone=str(gate)) for _ in range(6)))
    wait_for("four run, for there are four threads", lambda: running(fleet) == 4)
    worker.terminate()
    wait_for("it has heard", lambda: "stopping" in fleet.log("tasks"))
    assert (count(fleet, "completed"), running(fleet)) == (200, 4)
    gate.unlink()
    assert worker.wait(30) == 0
    assert (count(fleet, "completed"), running(fleet)) == (204, 0)


def test_a_process_whose_event_loop_is_ended_says_that_it_failed(without_redis: Fleet) -> None:
    worker = without_redis.task_worker()
    commit(without_redis, Job(), task=ends_its_loop)
    assert worker.wait(30) == LOOP_ENDED
    assert "event loop" in without_redis.log("tasks")


def test_what_a_killed_process_was_at_is_done_by_another(without_redis: Fleet, tmp_path: Path) -> None:
    fleet, gate = without_redis, tmp_path / "gate"
    gate.touch()
    first = fleet.task_worker("--threads", "2")
    ids = commit(fleet, *(Job(until_gone=str(gate)) for _ in range(4)))
    wait_for("two run", lambda: running(fleet) == 2)
    fleet.kill(first)
    gate.unlink()
    fleet.task_worker("--threads", "2")
    wait_for("all are done", lambda: count(fleet, "completed") == 4)
    assert effects(fleet) == Counter(dict.fromkeys(ids, 1))
    attempts = [n for (n,) in fleet.query("sea", "SELECT attempts FROM task_outbox ORDER BY attempts")]
    assert attempts == [1, 1, 2, 2]
