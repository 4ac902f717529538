"""A cron job that an operator pauses rests, whoever leads, and then one run makes up for what passed."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.domain.operators import Operator
from tests.integration.publishing import query
from tests.integration.test_cli_operating import Shell
from tests.integration.test_scheduler_leader import One, job, leading
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

RUNS = "SELECT state, scheduled_for > now() - interval '1 day' AS latest FROM scheduled_runs"


async def rests(one: One) -> None:
    """Wait until a scheduler has looked at its jobs, of which one is due."""
    await eventually("it has looked", lambda: one.crons._next is not None)
    one.crons.forget()
    await one.crons.tick()
    assert one.sent == []


async def test_a_pause_outlives_its_leader_and_one_run_makes_up_for_what_passed(database_url: str) -> None:
    async with leading(database_url, job(), name="first") as one:
        await eventually("it has looked", lambda: one.crons._next is not None)
        assert await one.schedule.pause("nightly", Operator("me"))
        query(database_url, "UPDATE scheduled_jobs SET registered_at = now() - interval '3 days' RETURNING name")
        await rests(one)
    async with leading(database_url, job(), name="second") as one:
        await rests(one)
        # On request it runs all the same.
        await one.schedule.request("nightly", Operator("me"))
        await eventually("it ran", lambda: len(one.sent) == 1)
        query(database_url, "DELETE FROM scheduled_runs RETURNING id")
        await one.schedule.pause("nightly", Operator("me"), pause=False)
        await eventually("it goes on", lambda: len(one.sent) == 2)
    [run] = query(database_url, RUNS)
    assert run == {"state": "waiting", "latest": True}


async def test_the_command_line_pauses_and_lets_go_on(tmp_path: Path, database_url: str) -> None:
    shell, sea = Shell(tmp_path, database_url), ("--context", "sea")
    jobs = "('nightly', '0 3 * * *'), ('publish:sea', 'every 0.1 s')"
    query(database_url, f"INSERT INTO scheduled_jobs (name, schedule) VALUES {jobs} RETURNING name")
    assert shell("schedule", "pause", "nightly", "--note", "import", *sea) == "sea: nightly is paused\n"
    assert "paused; never ran" in shell("schedule", "list", *sea)
    assert "NOT_PAUSABLE" in shell("schedule", "pause", "publish:sea", *sea, status=1)
    assert "UNKNOWN_JOB" in shell("schedule", "resume", "weekly", *sea, status=1)
    assert shell.json("schedule", "resume", "nightly", *sea) == {
        "context": "sea",
        "job": "nightly",
        "paused": False,
    }
    assert "paused" not in shell("schedule", "list", *sea)
