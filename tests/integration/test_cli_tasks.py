"""`relay tasks` as an operator types it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.integration.tasking import Mail, Tasks, tasking
from tests.integration.test_cli_operating import Shell

pytestmark = pytest.mark.anyio
SEA = ("--context", "sea")


def send(mail: Mail) -> None:
    """Do nothing."""


@pytest.fixture
async def tasks(database_url: str) -> AsyncIterator[Tasks]:
    async with tasking(database_url) as tasks:
        tasks.register(send)
        yield tasks


@pytest.fixture
def shell(tmp_path: Path, database_url: str) -> Shell:
    return Shell(tmp_path, database_url)


async def test_progress_is_listed_and_payloads_are_shown_only_when_asked_for(tasks: Tasks, shell: Shell) -> None:
    nothing = "No pending, delivered, running or failed tasks in sea.\n"
    assert shell("tasks", "list", *SEA) == nothing
    done, waits = tasks.schedule({"n": 1, "to": "DE02"}, {"n": 2, "to": "DE02"})
    await tasks.run(done)
    [found] = shell.json("tasks", "list", *SEA)
    assert (found["id"], found["status"], found["context"], found["attempts"]) == (str(waits), "pending", "sea", 0)
    assert [row["status"] for row in shell.json("tasks", "list", "--all", *SEA)] == ["pending", "completed"]
    assert "DE02" not in shell("tasks", "list", "--all", *SEA) + shell("tasks", "show", str(done), *SEA)
    shown = shell.json("tasks", "show", str(done), "--payload", *SEA)
    assert (shown["status"], shown["payload"]) == ("completed", {"n": 1, "to": "DE02"})
    assert "UNKNOWN_TASK" in shell("tasks", "show", str(uuid4()), *SEA, status=1)


async def test_tasks_are_cancelled_and_run_again_by_id_and_by_filter(tasks: Tasks, shell: Shell) -> None:
    first, second = tasks.schedule({"n": 1}, {"n": 2})
    [other] = tasks.schedule({"n": 3}, queue="bulk")
    assert "2 tasks" in shell("tasks", "cancel", "--queue", "default", *SEA, status=1)
    assert shell("tasks", "cancel", "--queue", "bulk", "--actor", "bob", *SEA) == "sea: cancelled 1\n"
    shell("tasks", "cancel", str(first), str(second), "--yes", *SEA)
    assert {row["status"] for row in await tasks.query("SELECT status FROM task_outbox")} == {"cancelled"}
    refused = shell("tasks", "cancel", str(first), *SEA, status=1)
    assert f"error NOT_CANCELLABLE: {first}: is cancelled" in refused
    answer = json.loads(shell("tasks", "retry", str(first), "--note", "after all", "--json", *SEA))
    [deed] = await tasks.query("SELECT id FROM audit_log WHERE note = 'after all'")
    assert answer == {
        "context": "sea",
        "action": "run again",
        "done": [str(first)],
        "refused": [],
        "deed": deed["id"],
        "left": 0,
        "gone": 0,
    }
    assert (await tasks.row(first))["status"] == "pending"
    assert shell.json("tasks", "retry", "--all", *SEA)["done"] == [], "cancelled ones only by id"
    history = shell.json("tasks", "show", str(first), *SEA)["history"]
    assert [entry["action"] for entry in history] == ["tasks.cancel", "tasks.retry"]
    assert [entry["actor"] for entry in shell.json("tasks", "show", str(other), *SEA)["history"]] == ["bob"]


async def test_a_task_is_shown_without_its_context_where_several_are_configured(
    tasks: Tasks, shell: Shell, tmp_path: Path, database_url: str
) -> None:
    [id] = tasks.schedule({"n": 1, "to": "DE02"})
    shown = shell("tasks", "show", str(id))
    assert re.search(f"^context +sea\nid +{id}$", shown, re.MULTILINE)
    assert "error DATABASE_UNREACHABLE: context quiet" in shown
    assert not re.search("^history", shown, re.MULTILINE), "nobody did anything"
    missing = shell("tasks", "show", str(uuid4()), status=1)
    assert "1 of 2" in missing
    assert "UNKNOWN_TASK" not in missing, "quiet may have it"
    both = Shell(tmp_path, database_url, quiet=database_url.replace("127.0.0.1", "localhost"))
    assert "(one of: sea, quiet)" in both("tasks", "show", str(id), status=1)
    assert "UNKNOWN_TASK" in both("tasks", "show", str(uuid4()), status=1)


def broken(mail: Mail) -> None:
    """Fail as a function with a mistake does."""
    {"DE02": 1}[mail.to]


async def test_a_task_that_failed_shows_where_and_repeats_no_value(tasks: Tasks, shell: Shell) -> None:
    tasks.register(broken, "broken")
    [id] = tasks.schedule({"n": 1, "to": "DE89"}, task_type="broken")
    await tasks.run(id, "broken")
    shown = shell("tasks", "show", str(id), *SEA)
    assert f"KeyError at {__name__}.broken:" in shown
    assert re.search(r"^stack +tests/integration/test_cli_tasks.py:[0-9]+ in broken$", shown, re.MULTILINE)
    [listed] = shell.json("tasks", "list", "--error", "raised_KeyError", *SEA)
    assert (listed["error_code"], len(listed["stack"])) == ("raised_KeyError", 1)
    assert " <- " not in shell("tasks", "list", *SEA, width=80)
    assert "DE89" not in shown


@pytest.mark.parametrize("command", ["retry", "cancel"])
def test_incomplete_commands_do_nothing(shell: Shell, command: str) -> None:
    assert "error INVALID_REQUEST: " in shell("tasks", command, *SEA, status=1)
    assert "error INVALID_REQUEST: " in shell("tasks", command, str(uuid4()), "--all", *SEA, status=1)
    assert "error INVALID_REQUEST: " in shell("tasks", command, "--all", status=1)
