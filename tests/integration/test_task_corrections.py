"""`@on_failed`: a function of the application, once, in the transaction that ends a task as failed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from relay import Event, Outbox
from relay.domain.errors import DomainError, InvalidHandler
from relay.domain.facts import TaskFailed
from tasks import FailedTask, on_failed, schedule
from tasks.registry import UnknownTask
from tests.integration.tasking import Mail, Tasks, tasking

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["loop", "threads"])
async def tasks(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Tasks]:
    async with tasking(database_url) as found:
        found.threads = request.param == "threads"
        found.register(refuse, max_retries=0)
        yield found


def refuse(mail: Mail) -> None:
    raise DomainError("no such person")


async def failed(tasks: Tasks) -> dict[str, Any]:
    [id] = tasks.schedule(Mail(n=7))
    await tasks.run(id)
    [row] = await rows(tasks, "SELECT status, last_error FROM task_outbox WHERE type = 'mail'")
    return row


async def rows(tasks: Tasks, sql: str) -> list[dict[str, Any]]:
    async with await psycopg.AsyncConnection.connect(tasks.url, row_factory=psycopg.rows.dict_row) as connection:
        return await (await connection.execute(sql)).fetchall()


async def alerted(tasks: Tasks) -> list[str]:
    return [row["class"] for row in await rows(tasks, "SELECT class FROM alerts ORDER BY class")]


async def test_it_writes_schedules_and_adds_events_with_the_end_of_the_task(tasks: Tasks) -> None:
    seen: list[FailedTask] = []

    def correct(task: FailedTask, session: Session) -> None:
        seen.append(task)
        session.execute(text("INSERT INTO effects (task_id, n) VALUES (:id, :n)"), {"id": task.task_id, "n": 1})
        event = Event(event_type="given_up", aggregate_type="mail", aggregate_id="7", payload={})
        Outbox("sea").add(session, event)
        schedule(session, "mail", Mail(n=8), within=tasks.registry, queue="later")

    on_failed("mail", into=tasks.registry)(correct)
    [id] = tasks.schedule(Mail(n=7))
    await tasks.run(id)
    [task] = seen
    assert (task.task_id, task.payload["n"], task.attempts) == (id, 7, 1)
    assert "no such person" in task.reason
    statuses = [row["status"] for row in await rows(tasks, "SELECT status FROM task_outbox ORDER BY seq")]
    assert statuses == ["failed", "pending"]
    assert [row["n"] for row in await rows(tasks, "SELECT n FROM effects")] == [1]
    [event] = await rows(tasks, "SELECT causation_id FROM outbox_events")
    assert event["causation_id"] == id
    assert [type(fact) for fact in tasks.facts if isinstance(fact, TaskFailed)] == [TaskFailed]
    assert await alerted(tasks) == ["failed_task"]


async def test_a_coroutine_may_correct_too(tasks: Tasks) -> None:
    async def correct(task: FailedTask, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("INSERT INTO effects (task_id, n) VALUES (%s, 2)", [task.task_id])

    on_failed("mail", into=tasks.registry)(correct)
    assert (await failed(tasks))["status"] == "failed"
    assert [row["n"] for row in await rows(tasks, "SELECT n FROM effects")] == [2]


async def test_if_it_raises_its_writes_are_rolled_back_and_the_task_is_failed_and_both_alert(tasks: Tasks) -> None:
    def correct(task: FailedTask, connection: psycopg.Connection[Any]) -> None:
        connection.execute("INSERT INTO effects (task_id, n) VALUES (%s, 1)", [task.task_id])
        raise KeyError("s3cret")

    on_failed("mail", into=tasks.registry)(correct)
    assert (await failed(tasks))["status"] == "failed"
    assert await rows(tasks, "SELECT n FROM effects") == []
    assert await alerted(tasks) == ["failed_correction", "failed_task"]
    [row] = await rows(tasks, "SELECT reason FROM alerts WHERE class = 'failed_correction'")
    assert row["reason"].startswith("KeyError at ")
    assert "s3cret" not in row["reason"]


async def test_if_it_hangs_the_task_is_failed_and_what_it_writes_later_is_rolled_back(tasks: Tasks) -> None:
    tasks.rows.correction_limit = timedelta(seconds=0.2)
    go_on, done = threading.Event(), threading.Event()

    def correct(task: FailedTask, connection: psycopg.Connection[Any]) -> None:
        try:
            go_on.wait(60)
            connection.execute("INSERT INTO effects (task_id, n) VALUES (%s, 1)", [task.task_id])
        finally:
            done.set()

    on_failed("mail", into=tasks.registry)(correct)
    row = await failed(tasks)
    go_on.set()
    await asyncio.to_thread(done.wait, 60)
    assert row["status"] == "failed"
    await asyncio.sleep(0)
    assert await rows(tasks, "SELECT n FROM effects") == []
    assert await alerted(tasks) == ["failed_correction", "failed_task"]


async def test_one_that_uses_no_transaction_is_called_before_the_task_ends(tasks: Tasks) -> None:
    seen: list[FailedTask] = []
    on_failed("mail", into=tasks.registry)(seen_by(seen))
    assert (await failed(tasks))["status"] == "failed"
    assert (len(seen), await alerted(tasks)) == (1, ["failed_task"])


def seen_by(seen: list[FailedTask]) -> Any:
    def correct(task: FailedTask) -> None:
        seen.append(task)

    return correct


async def test_a_correction_of_a_task_that_nobody_knows_is_refused(tasks: Tasks) -> None:
    with pytest.raises(UnknownTask):
        on_failed("male", into=tasks.registry)
    on_failed("mail", into=tasks.registry)(seen_by([]))
    with pytest.raises(InvalidHandler, match="already"):
        on_failed("mail", into=tasks.registry)(seen_by([]))
