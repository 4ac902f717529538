"""Tasks without Redis: one process polls, runs, retries, and stops without losing any (Strategy A)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from relay.domain.facts import TasksDelivered
from tasks import TaskContext
from tasks.worker import TaskWorker
from tests.integration.tasking import Mail, Tasks, tasking
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def tasks(database_url: str) -> AsyncIterator[Tasks]:
    async with tasking(database_url) as tasks:
        yield tasks


@asynccontextmanager
async def working(tasks: Tasks, **options: Any) -> AsyncIterator[TaskWorker]:
    worker = tasks.worker(**options)
    loop = asyncio.create_task(worker.run(tasks.runner_of(worker)))
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(loop, 60)
        await worker.drain(timedelta(seconds=20))


async def statuses(tasks: Tasks) -> list[str]:
    return [row["status"] for row in await tasks.query("SELECT status FROM task_outbox ORDER BY seq")]


async def until(tasks: Tasks, *expected: str) -> None:
    async def reached() -> bool:
        return await statuses(tasks) == list(expected)

    await eventually(f"the tasks are {expected}", reached)


async def test_failed_attempts_are_repeated_in_process_until_one_succeeds(tasks: Tasks) -> None:
    def third_time_lucky(mail: Mail, context: TaskContext) -> None:
        if context.attempt < 3:
            raise RuntimeError("not yet")

    tasks.register(third_time_lucky, backoff=("50ms", "100ms"))
    [id] = tasks.schedule({"n": 1})
    async with working(tasks):
        await until(tasks, "completed")
    assert (await tasks.row(id))["attempts"] == 3
    assert [fact.again for fact in tasks.reported(TasksDelivered)] == [False], "in its own time, not by the sweep"


async def test_tasks_that_wait_for_room_are_run_by_the_one_that_ends(tasks: Tasks) -> None:
    running, most = 0, 0

    async def work(mail: Mail) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    tasks.register(work, concurrency=1)
    tasks.schedule(*({"n": n} for n in range(8)))
    async with working(tasks, threads=8):
        await until(tasks, *["completed"] * 8)
    assert most == 1


async def test_only_its_own_queues_are_served(tasks: Tasks) -> None:
    async def work(mail: Mail) -> None:
        return

    tasks.register(work)
    tasks.schedule({"n": 1}, queue="bulk")
    tasks.schedule({"n": 2}, queue="mail")
    async with working(tasks, queues=["mail"]):
        await until(tasks, "pending", "completed")


async def test_what_is_not_done_in_time_is_counted_and_left_to_another(tasks: Tasks) -> None:
    stuck = asyncio.Event()

    async def hang(mail: Mail, context: TaskContext) -> None:
        if context.attempt == 1:
            stuck.set()
            await asyncio.Event().wait()

    tasks.register(hang)
    [id] = tasks.schedule({"n": 1})
    worker = tasks.worker()
    loop = asyncio.create_task(worker.run(tasks.runner_of(worker)))
    await asyncio.wait_for(stuck.wait(), 60)
    worker.stop()
    await asyncio.wait_for(loop, 60)
    assert await worker.drain(timedelta(milliseconds=50)) == 1
    await tasks.lose()
    async with working(tasks):
        await until(tasks, "completed")
    assert (await tasks.row(id))["attempts"] == 2
