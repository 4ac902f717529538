"""The page about tasks: its code does what it says."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from types import ModuleType

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tasks.registry import registry
from tests.integration.publishing import engine_url
from tests.integration.tasking import Tasks, tasking
from tests.pages import code

pytestmark = pytest.mark.anyio


@pytest.fixture
async def tasks(database_url: str) -> AsyncIterator[Tasks]:
    async with tasking(database_url) as tasks:
        tasks.registry = registry
        yield tasks


async def test_the_example_schedules_a_task_and_its_handler_runs(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("page_about_tasks")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(code("docs/how-to/tasks.md", "python", 1), module.__dict__)
    engine = create_engine(engine_url(tasks.url))
    exec(code("docs/how-to/tasks.md", "python", 2), {**module.__dict__, "Session": Session, "engine": engine})
    engine.dispose()
    [row] = await tasks.query("SELECT id, type, queue, available_at FROM task_outbox")
    assert (row["type"], row["queue"]) == ("send_welcome_email", "mail")
    await tasks.query("CREATE TABLE mails (user_id int)")
    await tasks.query("UPDATE task_outbox SET available_at = NULL")
    tasks.rows.registry = registry
    await tasks.run(row["id"], "send_welcome_email")
    assert await tasks.query("SELECT user_id FROM mails") == [{"user_id": 7}]
    assert (await tasks.row(row["id"]))["status"] == "completed"
