"""Tasks of plain functions in a worker's thread: what a function that hangs, or a claim that is lost, leads to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from relay.domain.errors import DatabaseUnreachable
from relay.domain.facts import TaskAnswered, TaskCompleted, TaskRetried
from tasks import TaskContext
from tasks.task_rows import TaskKey
from tests.integration.tasking import EFFECT, Mail, Tasks, tasking
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

END_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE application_name = 'tasking' AND pid <> pg_backend_pid()"
)


@pytest.fixture(params=["claimed alone", "claimed ahead"])
async def tasks(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Tasks]:
    async with tasking(database_url) as tasks:
        tasks.threads, tasks.ahead = True, request.param == "claimed ahead"
        yield tasks


async def test_a_function_runs_in_the_thread_that_asks(tasks: Tasks) -> None:
    seen: list[threading.Thread] = []

    def look(mail: Mail, session: Session) -> None:
        seen.append(threading.current_thread())

    tasks.register(look)
    [id] = tasks.schedule(Mail(n=1))
    thread = threading.Thread(target=tasks.direct().run, args=(TaskKey(id, "mail"),))
    thread.start()
    await asyncio.to_thread(thread.join, 20)
    await tasks.completions.drain()
    assert seen == [thread]
    assert len(tasks.reported(TaskCompleted)) == 1


async def test_a_task_that_hangs_is_tried_again_and_its_thread_replaced_while_it_hangs(tasks: Tasks) -> None:
    gate = threading.Event()

    def hang(mail: Mail, session: Session, context: TaskContext) -> None:
        session.execute(text(EFFECT.format(context.task_id, mail.n)))
        if context.attempt == 1:
            gate.wait(30)

    tasks.register(hang, time_limit="300ms", backoff=("10ms", "10ms"))
    [id] = tasks.schedule(Mail(n=1))
    running = asyncio.create_task(tasks.run(id))
    await eventually("it is to be tried again", lambda: _same(tasks.later))
    assert not running.done()
    assert [thread.is_alive() for thread in tasks.replaced] == [True]
    assert [later[0] for later in tasks.later] == [id]
    assert "time-out" in (await tasks.row(id))["last_error"]
    await tasks.make_due(id)
    assert await tasks.run(id) is None
    gate.set()
    assert await asyncio.wait_for(running, 60) is None
    assert await tasks.effects() == [id]
    assert [fact.attempts for fact in tasks.reported(TaskCompleted)] == [2]
    assert len(tasks.reported(TaskRetried)) == 1
    assert len(tasks.reported(TaskAnswered)) == 2


async def _same(found: list[tuple[object, timedelta]]) -> list[tuple[object, timedelta]]:
    return found


async def test_a_long_function_keeps_its_claim(tasks: Tasks) -> None:
    tasks.rows.lease = timedelta(seconds=3)
    gate = threading.Event()

    def wait(mail: Mail, session: Session) -> None:
        gate.wait(30)

    tasks.register(wait)
    [id] = tasks.schedule(Mail(n=1))
    running = asyncio.create_task(tasks.run(id))
    await eventually("it is renewed after the end of its first lease", lambda: _renewed(tasks))
    assert await asyncio.wait_for(tasks.run(id), 60) is None
    gate.set()
    await running
    row = await tasks.row(id)
    assert (row["status"], row["attempts"]) == ("completed", 1)


async def _renewed(tasks: Tasks) -> bool:
    # A renewal adds a lease to the time at which it comes.
    [row] = await tasks.query("SELECT claimed_until > started_at + interval '6 s' AS later FROM task_outbox")
    return bool(row["later"])


async def test_a_connection_lost_in_the_function_undoes_its_effect_and_it_is_tried_again(tasks: Tasks) -> None:
    def cut(mail: Mail, session: Session, context: TaskContext) -> None:
        session.execute(text(EFFECT.format(context.task_id, mail.n)))
        if context.attempt == 1:
            with psycopg.connect(tasks.url, autocommit=True) as other:
                other.execute(END_OTHERS)

    tasks.register(cut)
    [id] = tasks.schedule(Mail(n=1))
    try:
        delay = await tasks.run(id)
    except DatabaseUnreachable:
        delay = None  # the loop's own connection was hit as well; the row waits for its lease
    if delay is None:
        await tasks.query("UPDATE task_outbox SET claimed_until = now()")
    await tasks.make_due(id)
    assert await tasks.run(id) is None
    assert await tasks.effects() == [id]
    assert (await tasks.row(id))["attempts"] == 2


async def test_a_function_sees_the_context_of_its_own_call_only(tasks: Tasks) -> None:
    variable: ContextVar[int] = ContextVar("variable", default=0)
    seen: list[int] = []

    def leave(mail: Mail) -> None:
        seen.append(variable.get())
        variable.set(mail.n)

    tasks.register(leave)
    ids = tasks.schedule(Mail(n=1), Mail(n=2))
    direct = tasks.direct()

    def both() -> None:
        for id in ids:
            direct.run(TaskKey(id, "mail"))

    thread = threading.Thread(target=both)
    thread.start()
    await asyncio.to_thread(thread.join, 20)
    assert seen == [0, 0]
