"""One attempt at a task on a real database: its effect once, its retries, its end, its limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from relay import RequestContext
from relay.domain.disclosure import stack_of
from relay.domain.errors import AlreadyProcessed, ConnectionsBusy, DomainError
from relay.domain.facts import TaskCompleted, TaskFailed, TaskRetried, TaskUnhandled
from relay.domain.tasks import TaskRef
from tasks import TaskContext
from tasks.task_rows import TaskKey
from tests.integration.tasking import EFFECT, Mail, Tasks, tasking
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["in the worker's thread", "in the worker's thread, claimed ahead", "on the loop"])
async def tasks(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Tasks]:
    async with tasking(database_url) as tasks:
        tasks.threads, tasks.ahead = "thread" in request.param, "ahead" in request.param
        yield tasks


def with_session(mail: Mail, session: Session, context: TaskContext) -> None:
    session.execute(text(EFFECT.format(context.task_id, mail.n)))


def with_connection(mail: Mail, connection: psycopg.Connection[Any], context: TaskContext) -> None:
    connection.execute(EFFECT.format(context.task_id, mail.n))


async def with_async_session(mail: Mail, session: AsyncSession, context: TaskContext) -> None:
    await session.execute(text(EFFECT.format(context.task_id, mail.n)))


async def with_async_connection(
    mail: Mail, connection: psycopg.AsyncConnection[Any], context: TaskContext
) -> None:
    await connection.execute(EFFECT.format(context.task_id, mail.n))


KINDS = [with_session, with_connection, with_async_session, with_async_connection]


@pytest.mark.parametrize("function", KINDS)
async def test_a_function_that_gets_no_connection_spends_no_attempt(
    tasks: Tasks, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.register(function)
    [id] = tasks.schedule(Mail(n=1))
    taken, keep = tasks.transactions._connections._budget, tasks.rows.terms(TaskKey(id, "mail"))
    taken.wait = 0.01
    if tasks.ahead and keep is not None:
        tasks.claim_ahead(TaskRef(id, "mail", "default", 0))
        tasks.ahead = False
        taken.close_idle()
    monkeypatch.setattr(taken, "most_alike", 0)
    with suppress(ConnectionsBusy):  # from the claim, which then counts nothing
        assert await tasks.run(id) is not None
    row = await tasks.row(id)
    assert (row["attempts"], row["claim_token"], await tasks.effects()) == (0, None, [])


@pytest.mark.parametrize("function", KINDS)
async def test_the_effect_and_the_end_of_the_task_commit_together_and_once(tasks: Tasks, function: Any) -> None:
    tasks.register(function)
    [id] = tasks.schedule(Mail(n=1))
    assert await tasks.run(id) is None
    assert await tasks.run(id) is None
    assert await tasks.effects() == [id]
    assert (await tasks.row(id))["status"] == "completed"
    assert [row["handler"] for row in await tasks.query("SELECT handler FROM processed_events")] == ["task:mail"]
    assert [fact.attempts for fact in tasks.reported(TaskCompleted)] == [1]


def address(connection: Any) -> str:
    """Where a connection leads; what it shows itself leaves the password out."""
    return f"{connection.info.dsn} password={connection.info.password}"


def usurped(mail: Mail, session: Session, context: TaskContext) -> None:
    with_session(mail, session, context)
    with psycopg.connect(address(session.connection().connection.driver_connection)) as other:
        other.execute(USURP)


async def usurped_async(mail: Mail, session: AsyncSession, context: TaskContext) -> None:
    await with_async_session(mail, session, context)
    raw = await (await session.connection()).get_raw_connection()
    async with await psycopg.AsyncConnection.connect(address(raw.driver_connection)) as other:
        await other.execute(USURP)


USURP = "UPDATE task_outbox SET claim_token = gen_random_uuid()"


@pytest.mark.parametrize("function", [usurped, usurped_async])
async def test_an_effect_of_a_claim_that_was_lost_is_rolled_back(tasks: Tasks, function: Any) -> None:
    tasks.register(function)
    [id] = tasks.schedule(Mail(n=1))
    await tasks.run(id)
    assert await tasks.effects() == []
    row = await tasks.row(id)
    assert (row["status"], row["last_error"]) == ("delivered", None)


async def test_two_that_run_one_task_at_once_have_one_effect(tasks: Tasks) -> None:
    tasks.register(with_session)
    [id] = tasks.schedule(Mail(n=1))
    await asyncio.gather(*(tasks.run(id) for _ in range(6)))
    assert await tasks.effects() == [id]
    assert (await tasks.row(id))["attempts"] == 1


async def test_a_task_that_was_processed_is_not_called_again_though_its_row_says_nothing(tasks: Tasks) -> None:
    tasks.register(with_session)
    [id] = tasks.schedule(Mail(n=1))
    await tasks.run(id)
    await tasks.query("UPDATE task_outbox SET status = 'pending'")
    await tasks.run(id)
    assert await tasks.effects() == [id]
    assert (await tasks.row(id))["status"] == "completed"


async def test_functions_without_a_transaction_are_completed_after_they_return(tasks: Tasks) -> None:
    seen: list[Any] = []

    def plain(mail: Mail, context: TaskContext) -> None:
        seen.append((mail.n, context.attempt, context.metadata, RequestContext.current().causation_id))

    tasks.register(plain)
    [id] = tasks.schedule(Mail(n=1), metadata={"tenant": "a"})
    await tasks.run(id)
    assert seen == [(1, 1, {"tenant": "a"}, id)]
    assert (await tasks.row(id))["status"] == "completed"


async def test_a_failure_is_tried_again_by_the_row_and_ends_as_failed_with_an_alert(tasks: Tasks) -> None:
    def fail(mail: Mail, session: Session, context: TaskContext) -> None:
        session.execute(text(EFFECT.format(context.task_id, mail.n)))
        raise RuntimeError(f"s3cret {context.attempt}")

    tasks.register(fail, max_retries=1, backoff=("10s", "60s"))
    ids = {"correlation_id": uuid4(), "causation_id": uuid4()}
    [id] = tasks.schedule(Mail(n=1), **ids)
    delay = await tasks.run(id)
    assert delay is not None
    assert timedelta(seconds=8) <= delay <= timedelta(seconds=10)
    assert await tasks.run(id) is None, "its back-off is not over"
    assert (await tasks.row(id))["attempts"] == 1
    await tasks.make_due(id)
    assert await tasks.run(id) is None
    row = await tasks.row(id)
    assert (row["status"], row["attempts"]) == ("failed", 2)
    assert f"RuntimeError at {__name__}.fail:" in row["last_error"]
    assert "s3cret" not in row["last_error"] + repr(tasks.facts)
    assert [fact.attempts for fact in tasks.reported(TaskRetried)] == [1]
    assert [fact.task_id for fact in tasks.reported(TaskFailed)] == [id]
    told = [*tasks.reported(TaskRetried), *tasks.reported(TaskFailed)]
    assert [(fact.correlation_id, fact.causation_id) for fact in told] == [(*ids.values(),)] * 2
    assert await tasks.effects() == []


async def test_a_rule_of_the_business_fails_at_once(tasks: Tasks) -> None:
    def refuse(mail: Mail) -> None:
        raise DomainError("no such account")

    tasks.register(refuse)
    [id] = tasks.schedule(Mail(n=1))
    assert await tasks.run(id) is None
    row = await tasks.row(id)
    reason, [line] = stack_of(row["last_error"])
    assert (row["status"], reason) == ("failed", "DomainError: no such account")
    assert line.endswith(" in refuse")


async def test_what_was_done_before_counts_as_done(tasks: Tasks) -> None:
    def again(mail: Mail, session: Session, context: TaskContext) -> None:
        session.execute(text(EFFECT.format(context.task_id, mail.n)))
        raise AlreadyProcessed("sent on Monday")

    tasks.register(again)
    [id] = tasks.schedule(Mail(n=1))
    await tasks.run(id)
    assert (await tasks.row(id))["status"] == "completed"
    assert await tasks.effects() == []


async def test_a_payload_that_no_longer_fits_fails_and_names_the_field(tasks: Tasks) -> None:
    tasks.register(with_session)
    [id] = tasks.schedule({"n": 1}, registered=False)
    await tasks.query("""UPDATE task_outbox SET payload = '{"n": "secret"}'""")
    await tasks.run(id)
    row = await tasks.row(id)
    assert row["status"] == "failed"
    assert row["last_error"].endswith("int_parsing at payload.n")
    assert "secret" not in row["last_error"]


async def test_an_attempt_that_takes_too_long_is_over_and_cannot_commit_later(tasks: Tasks) -> None:
    gate, done = threading.Event(), threading.Event()

    def slow(mail: Mail, session: Session, context: TaskContext) -> None:
        session.execute(text(EFFECT.format(context.task_id, mail.n)))
        gate.wait(20)
        done.set()

    tasks.threads = False  # a worker's thread does not return before the function: see test_task_direct
    tasks.register(slow, time_limit="300ms")
    [id] = tasks.schedule(Mail(n=1))
    assert await tasks.run(id) is not None
    assert "time-out" in (await tasks.row(id))["last_error"]
    gate.set()
    await asyncio.to_thread(done.wait, 20)
    await asyncio.wait_for(tasks.transactions.close(), 60)
    assert await tasks.effects() == []


async def test_a_claim_is_renewed_while_the_handler_works(tasks: Tasks) -> None:
    tasks.rows.lease = lease = timedelta(seconds=3)
    go = asyncio.Event()

    async def wait(mail: Mail) -> None:
        await go.wait()

    tasks.register(wait)
    [id] = tasks.schedule(Mail(n=1))
    running = asyncio.create_task(tasks.run(id))
    first = await eventually("it is claimed", lambda: _claimed_until(tasks))
    await eventually("it is renewed after the end of its first lease", lambda: _later(tasks, first + lease))
    assert await asyncio.wait_for(tasks.run(id), 60) is None
    go.set()
    await running
    assert (await tasks.row(id))["attempts"] == 1


async def _claimed_until(tasks: Tasks) -> Any:
    return (await tasks.query("SELECT claimed_until FROM task_outbox"))[0]["claimed_until"]


async def _later(tasks: Tasks, moment: Any) -> bool:
    return bool(await _claimed_until(tasks) > moment)


async def test_a_task_that_takes_its_worker_along_each_time_ends_as_failed(tasks: Tasks) -> None:
    calls: list[int] = []

    def count(mail: Mail) -> None:
        calls.append(mail.n)

    tasks.register(count, max_retries=2)
    [id] = tasks.schedule(Mail(n=1))
    await tasks.query("UPDATE task_outbox SET status = 'delivered', attempts = 3")
    await tasks.run(id)
    row = await tasks.row(id)
    assert (row["status"], calls) == ("failed", [])
    assert row["last_error"].startswith("exhausted: 3 attempts")
    assert len(tasks.reported(TaskFailed)) == 1


async def test_a_type_that_no_module_registers_waits_and_spends_no_attempt(tasks: Tasks) -> None:
    [id] = tasks.schedule({"n": 1}, task_type="other", registered=False)
    assert await tasks.run(id, "other") is not None
    row = await tasks.row(id)
    assert (row["status"], row["attempts"], row["waits_for"]) == ("delivered", 0, "handler")
    assert len(tasks.reported(TaskUnhandled)) == 1


# --- limits ---


async def test_no_more_of_a_key_run_at_once_than_its_limit_and_all_of_them_run(tasks: Tasks) -> None:
    running: dict[str, int] = {}
    most: dict[str, int] = {}

    async def work(mail: Mail) -> None:
        running[mail.to] = running.get(mail.to, 0) + 1
        most[mail.to] = max(most.get(mail.to, 0), running[mail.to])
        await asyncio.sleep(0.05)
        running[mail.to] -= 1

    tasks.register(work, concurrency=2, concurrency_key="to")
    ids = tasks.schedule(*(Mail(n=n, to="ann" if n % 2 else "bob") for n in range(16)))
    await asyncio.gather(*(tasks.run(id) for id in ids))
    while tasks.woken:
        woken, tasks.woken[:] = list(tasks.woken), []
        await asyncio.gather(*(tasks.run(ref.id) for ref in woken))
    rows = await tasks.query("SELECT status, attempts FROM task_outbox")
    assert [(row["status"], row["attempts"]) for row in rows] == [("completed", 1)] * 16
    assert most == {"ann": 2, "bob": 2}


@pytest.mark.parametrize("end", ["completed", "tried again", "failed"])
async def test_a_task_that_finds_no_room_is_put_off_without_an_attempt(tasks: Tasks, end: str) -> None:
    """However the one before it ends, it is woken then."""
    go = asyncio.Event()

    async def work(mail: Mail) -> None:
        await go.wait()
        if mail.n == 1 and end != "completed":
            raise DomainError("no such mail") if end == "failed" else ValueError("not now")

    tasks.register(work, concurrency=1)
    first, second = tasks.schedule(Mail(n=1), Mail(n=2))
    running = asyncio.create_task(tasks.run(first))
    await eventually("it runs", lambda: _claimed_until_of(tasks, first))
    assert await tasks.run(second) is not None
    row = await tasks.row(second)
    assert (row["attempts"], row["waits_for"], row["claim_token"]) == (0, "room", None)
    assert tasks.woken == []
    go.set()
    await running
    assert [ref.id for ref in tasks.woken] == [second]
    assert await tasks.run(second) is None
    assert (await tasks.row(second))["status"] == "completed"


async def _claimed_until_of(tasks: Tasks, id: Any) -> Any:
    return (await tasks.row(id))["claimed_until"]


async def test_a_worker_that_died_gives_its_room_back_after_the_lease(tasks: Tasks) -> None:
    tasks.register(with_session, concurrency=1)
    first, second = tasks.schedule(Mail(n=1), Mail(n=2))
    await tasks.query(
        "UPDATE task_outbox SET status = 'delivered', claim_token = gen_random_uuid(),"
        " claimed_until = now() + interval '1 hour' WHERE id = %s",
        first,
    )
    assert await tasks.run(second) is not None
    await tasks.query("UPDATE task_outbox SET claimed_until = now() - interval '1 second' WHERE id = %s", first)
    await tasks.make_due(second)
    assert await tasks.run(second) is None
    assert await tasks.effects() == [second]


async def test_starts_of_a_type_are_an_interval_apart_over_all_workers(tasks: Tasks) -> None:
    async def work(mail: Mail) -> None:
        return

    tasks.register(work, rate_limit="20/1s")
    ids = tasks.schedule(*(Mail(n=n) for n in range(10)))
    await asyncio.gather(*(tasks.run(id) for id in ids))
    rows = await tasks.query("SELECT status, started_at FROM task_outbox ORDER BY started_at")
    assert {row["status"] for row in rows} == {"completed"}
    gaps = [after["started_at"] - before["started_at"] for before, after in pairwise(rows)]
    assert min(gaps) >= timedelta(milliseconds=50)


async def test_each_task_over_the_rate_is_promised_a_slot_of_its_own_and_nobody_overtakes(tasks: Tasks) -> None:
    tasks.register(with_session, rate_limit="1/1h")
    ids = tasks.schedule(*(Mail(n=n) for n in range(4)))
    delays = [await tasks.run(id) for id in ids]
    hours = [None if delay is None else round(delay / timedelta(hours=1)) for delay in delays]
    assert hours == [None, 1, 2, 3]
    assert await tasks.effects() == ids[:1]
    # The slot has come for the first of those that wait: a newcomer must not take it.
    await tasks.query("UPDATE task_rates SET free_at = now()")
    [newcomer] = tasks.schedule(Mail(n=9))
    late = await tasks.run(newcomer)
    assert late is not None
    assert round(late / timedelta(hours=1)) == 4
    await tasks.make_due(ids[1])
    assert await tasks.run(ids[1]) is None
    assert await tasks.effects() == ids[:2]
    rows = await tasks.query("SELECT attempts, waits_for FROM task_outbox WHERE status = 'delivered'")
    assert [(row["attempts"], row["waits_for"]) for row in rows] == [(0, "turn")] * 3
