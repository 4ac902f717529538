"""The page about jobs by the clock: its job runs, and its commands list, run, pause and resume it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import psycopg

from tests.acceptance.fleet import ROOT, Fleet
from tests.integration.test_cli_operating import Shell
from tests.pages import code, commands
from tests.waiting import wait_for

JOB = "myapp.jobs.close_stale_cases"
CASES = """
import os

import psycopg

from relay.bus import Command, CommandBus

bus = CommandBus()


class CloseStaleCases(Command[None]):
    older_than_days: int


@bus.handles(CloseStaleCases)
def close(command: CloseStaleCases) -> None:
    with psycopg.connect(os.environ["RELAY_CONTEXTS__SEA__DATABASE_URL"]) as connection:
        connection.execute("INSERT INTO effects VALUES (%s)", [command.older_than_days])
"""


class OneContext(Fleet):
    @property
    def contexts(self) -> Sequence[str]:
        return ("sea",)

    def configuration(self) -> str:
        return "[contexts.sea]\n"


class Typed(Shell):
    """The commands of an operator of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._directory, self._environment = fleet.directory, fleet.environment


def application(directory: Path) -> dict[str, str]:
    """Write the application of the page; returns the variables of its processes."""
    (directory / "myapp").mkdir(parents=True)
    (directory / "myapp" / "cases.py").write_text(CASES)
    (directory / "myapp" / "jobs.py").write_text(code("docs/how-to/scheduling.md", "python", 1))
    [export] = commands(code("docs/how-to/scheduling.md", "sh", 2))
    name, _, value = export.removeprefix("export ").partition("=")
    return {name: value, "PYTHONPATH": f"{ROOT}:{directory}"}


def test_the_job_of_the_page_runs_and_its_commands_do_what_they_say(server_directory: Path) -> None:
    variables = application(server_directory)
    with OneContext(server_directory, variables=variables) as fleet:
        fleet.query("sea", "CREATE TABLE effects (older_than_days int)")
        fleet.scheduler()
        fleet.worker(threads=2)
        listed_there = "SELECT 1 FROM scheduled_jobs WHERE name = %s"
        wait_for("the job is listed", lambda: fleet.query("sea", listed_there, JOB))
        typed = [shlex.split(command)[1:] for command in commands(code("docs/how-to/scheduling.md", "sh", 1))]
        shell = Typed(fleet)
        listed, runs, as_json, reconciled, ran, paused, resumed = (shell(*words) for words in typed)
        assert JOB in listed
        assert JOB in runs
        assert f'"{JOB}"' in as_json
        assert "reconcile_stream:sea" in reconciled
        # At its own time it runs, too: three o'clock in Kyiv comes for tests as well.
        assert (JOB in ran, (90,) in fleet.query("sea", "SELECT * FROM effects")) == (True, True)
        assert paused == f"sea: {JOB} is paused\n"
        assert resumed == f"sea: {JOB} goes on\n"
        with psycopg.connect(fleet.urls["sea"]) as connection:
            kept = connection.execute(code("docs/how-to/scheduling.md", "sql", 1).encode()).fetchall()
        assert ("finished", 1) in {(state, attempts) for _, state, attempts, *_ in kept}
