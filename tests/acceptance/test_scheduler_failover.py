"""Two schedulers, real processes: one leads; killed, paused or fought over, no run is lost, none happens twice.

What is measured is the record: a job that fires every second leaves a row for each second in which somebody led,
so the longest gap between two rows is the time without a leader. It cannot come out short by luck of the clock.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.fleet import Fleet
from tests.waiting import wait_for

LEASE = 3
#: With the lease: the ten seconds within which everything goes on, whatever dies. A busy machine takes its part.
MARGIN = timedelta(seconds=7)
JOB = "every-second"
MODULES = "consumer.actors,tests.acceptance.cron_effects"
EFFECTS = "CREATE TABLE effects (scheduled_for timestamptz NOT NULL, correlation_id uuid NOT NULL)"

#: Both look at the same pace. So whoever lost its lease could be the first to look again, each time.
ONLY_THE_OTHER = """
CREATE FUNCTION only_the_other() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN
  RETURN CASE WHEN OLD.expires_at > clock_timestamp() OR NEW.holder IS DISTINCT FROM OLD.holder THEN NEW END;
END$$;
CREATE TRIGGER only_the_other BEFORE UPDATE ON scheduler_lease FOR EACH ROW EXECUTE FUNCTION only_the_other();
"""


AT_ONCE = """
    SELECT ARRAY(SELECT scheduled_for FROM effects ORDER BY 1),
           ARRAY(SELECT scheduled_for FROM scheduled_runs WHERE job = %s AND state = 'finished' ORDER BY 1),
           (SELECT count(*) FROM scheduled_runs WHERE job = %s AND state IN ('waiting', 'started'))
"""


class Schedulers(Fleet):
    """A fleet whose application has a job for every second, and a short lease."""

    @property
    def environment(self) -> dict[str, str]:
        return {
            **super().environment,
            "RELAY_ACTOR_MODULES": MODULES,
            "RELAY_SCHEDULER_LEASE": f"{LEASE}s",
        }

    def leader(self) -> int | None:
        """The process that leads the context, as the database has it."""
        rows = self.query("sea", "SELECT who FROM scheduler_lease WHERE expires_at > clock_timestamp()")
        return int(rows[0][0].rpartition(":")[2]) if rows else None

    def runs(self, state: str | None = None) -> list[datetime]:
        """For which seconds there is a run."""
        found = self.query(
            "sea",
            "SELECT scheduled_for FROM scheduled_runs WHERE job = %s AND state = coalesce(%s, state) ORDER BY 1",
            JOB,
            state,
        )
        return [at for (at,) in found]

    def more_runs(self, count: int = 3, seconds: float = 60) -> None:
        """Wait until so many more runs have finished."""
        wanted = len(self.runs("finished")) + count
        wait_for(f"{count} more runs", lambda: len(self.runs("finished")) >= wanted, seconds)

    def settled(self) -> tuple[list[datetime], list[datetime]]:
        """Wait for a moment at which no run is under way; return the effects and the finished runs of it."""

        def at_once() -> tuple[list[datetime], list[datetime]] | None:
            # In one statement: the next run begins within a second.
            [(effects, finished, under_way)] = self.query("sea", AT_ONCE, JOB, JOB)
            return None if under_way else (effects, finished)

        return wait_for("all runs are over", at_once)


@pytest.fixture
def fleet(server_directory: Path) -> Iterator[Schedulers]:
    with Schedulers(server_directory) as fleet:
        fleet.query("sea", EFFECTS)
        fleet.worker()
        yield fleet


@pytest.fixture
def two(fleet: Schedulers) -> Callable[[], tuple[Any, Any]]:
    """Start two schedulers; returns the one that leads, and the other."""
    processes = [fleet._start(f"scheduler-{number}", "-m", "scheduler") for number in (1, 2)]
    wait_for("both have started", lambda: all("scheduler started" in fleet.log(f"scheduler-{n}") for n in (1, 2)))

    def roles() -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
        pid = wait_for("one leads", fleet.leader)
        first, second = processes
        return (first, second) if first.pid == pid else (second, first)

    fleet.more_runs()
    return roles


def gaps(runs: list[datetime]) -> list[timedelta]:
    return [after - before for before, after in pairwise(runs)]


def check(fleet: Schedulers, limit: timedelta = timedelta(seconds=LEASE) + MARGIN) -> None:
    """No effect twice, none without its record, none missing, and no gap longer than ``limit``."""
    effects, finished = fleet.settled()
    assert len(effects) == len(set(effects))
    assert effects == finished
    ids = fleet.query("sea", "SELECT count(DISTINCT correlation_id), count(*) FROM effects")
    assert ids[0][0] == ids[0][1]
    assert fleet.runs("failed") == []
    assert max(gaps(fleet.runs())) <= limit


def test_when_the_leader_is_killed_the_other_goes_on_within_the_lease(
    fleet: Schedulers, two: Callable[[], Any]
) -> None:
    leader, other = two()
    fleet.kill(leader)
    wait_for("the other leads", lambda: fleet.leader() == other.pid, seconds=LEASE + 20)
    fleet.more_runs()
    check(fleet)


def test_a_leader_that_was_paused_does_no_harm_when_it_goes_on(fleet: Schedulers, two: Callable[[], Any]) -> None:
    leader, other = two()
    for _ in range(2):
        fleet.freeze(leader)
        wait_for("the other leads", lambda other=other: fleet.leader() == other.pid)
        fleet.more_runs()
        fleet.thaw(leader)
        fleet.more_runs()
        assert fleet.leader() == other.pid
        leader, other = other, leader
    check(fleet)


def test_a_leader_that_stops_hands_over_before_its_lease_is_over(
    fleet: Schedulers, two: Callable[[], Any]
) -> None:
    leader, other = two()
    assert fleet.stop(leader) == 0
    wait_for("the other leads", lambda: fleet.leader() == other.pid)
    fleet.more_runs()
    check(fleet, timedelta(seconds=3) + MARGIN)


def test_two_that_both_believe_to_lead_do_nothing_twice(fleet: Schedulers, two: Callable[[], Any]) -> None:
    """The lease is taken from whoever has it, again and again; until its next look, the loser ticks on."""
    two()
    fleet.query("sea", ONLY_THE_OTHER)

    def term() -> int:
        return int(fleet.query("sea", "SELECT term FROM scheduler_lease")[0][0])

    for _ in range(8):
        before = term()
        fleet.query("sea", "UPDATE scheduler_lease SET expires_at = clock_timestamp()")
        wait_for("the other has the lease", lambda before=before: term() > before)
        time.sleep(1)
    fleet.more_runs()
    check(fleet)


def test_an_outage_of_every_scheduler_and_of_redis_is_made_up_for_by_one_run(
    fleet: Schedulers, two: Callable[[], Any]
) -> None:
    leader, other = two()
    for process in (leader, other):
        fleet.kill(process)
    fleet.settled()
    last = fleet.runs()[-1]
    fleet.flush()
    wait_for("some seconds are missed", lambda: _now(fleet) > last + timedelta(seconds=6))
    fleet.scheduler()
    wait_for("it goes on", lambda: len([run for run in fleet.runs() if run > last]) >= 3)
    effects, finished = fleet.settled()
    [first, *_] = [run for run in finished if run > last]
    assert first - last >= timedelta(seconds=6)
    assert effects == finished


def _now(fleet: Schedulers) -> datetime:
    now: datetime = fleet.query("sea", "SELECT clock_timestamp()")[0][0]
    return now


def test_an_outage_of_one_database_stops_only_its_context(fleet: Schedulers, two: Callable[[], Any]) -> None:
    two()
    term = fleet.query("vibespro", "SELECT term, who FROM scheduler_lease")
    fleet.query("sea", "ALTER DATABASE vibespro ALLOW_CONNECTIONS false")
    kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = 'vibespro'"
    fleet.query("sea", kill)
    fleet.more_runs(8)
    check(fleet)
    fleet.query("sea", "ALTER DATABASE vibespro ALLOW_CONNECTIONS true")
    alive = "SELECT term, who FROM scheduler_lease WHERE expires_at > clock_timestamp()"
    wait_for("its context has a leader again", lambda: fleet.query("vibespro", alive))
    assert fleet.query("vibespro", alive)[0][0] >= term[0][0]


def test_the_schedule_is_listed_and_a_job_runs_on_demand(fleet: Schedulers, two: Callable[[], Any]) -> None:
    two()
    output = fleet.relay("schedule", "run", "yearly", "--context", "sea", "--note", "now")
    assert output.startswith("sea: yearly finished; its life: relay explain ")
    assert fleet.relay("schedule", "run", "prune:sea", "--context", "sea") == "sea: prune:sea ran\n"
    [listed] = json.loads(fleet.relay("schedule", "list", "--context", "sea", "--json"))
    assert listed["leader"].rpartition(":")[2] == str(fleet.leader())
    jobs = {job["name"]: job for job in listed["jobs"]}
    assert jobs["yearly"]["outcome"] == "finished"
    assert jobs["yearly"]["next_run_at"].endswith("-01-01T00:00:00Z")
    assert jobs["publish:sea"]["last_run_at"]
    assert "led by" in fleet.relay("schedule", "list")
    effects, finished = fleet.settled()
    assert len(effects) == len(finished) + 1
