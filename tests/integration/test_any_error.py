"""Whatever a function of an application raises is one failed attempt of its row, with class and line.

Here are those that could reach further than their row. `tests/unit/test_any_error.py` has many more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn
from uuid import UUID

import psycopg
import pytest
from pydantic import BaseModel, field_validator
from sqlalchemy.orm import Session

from consumer.correcting import CorrectDeadLetters
from consumer.corrections import Corrections, DeadMessage, on_dead_letter
from consumer.handlers import MessageContext
from relay.adapters.postgres.transactions import HandlerTransactions
from relay.devstack import NatsServer
from relay.domain.disclosure import stack_of
from relay.domain.retry import InvalidRetry, RetryFunction
from relay.execution.retry_rules import RetryRule
from tasks import FailedTask, on_failed
from tests.hostile_errors import HOSTILE
from tests.integration.consuming import SUBSCRIPTION, subscribed
from tests.integration.cron_bench import NOON, Work, benched
from tests.integration.incidents import at_the_desk
from tests.integration.python_handling import Handling, handling
from tests.integration.tasking import Mail, tasking

pytestmark = pytest.mark.anyio

NAMES = [
    *(
        "KeyboardInterrupt",
        "SystemExit",
        "GeneratorExit",
        "CancelledError",
        "StopIteration",
        "TimeIsUp",
        "Shutdown",
    ),
    *("BaseExceptionGroup", "Furious", "Closed", "a huge text", "a huge refusal"),
]


class Wish(BaseModel):
    """The exception that its handler raises."""

    error: str

    @field_validator("error")
    @classmethod
    def check(cls, name: str) -> str:
        return raise_it(name.removeprefix("at once: ")) if name.startswith("at once: ") else name


def raise_it(name: str) -> Any:
    if (make := HOSTILE.get(name)) is not None:
        raise make()
    return name


def plain(wish: Wish) -> None:
    raise_it(wish.error)


async def coroutine(wish: Wish) -> None:
    await asyncio.sleep(0)
    raise_it(wish.error)


def with_session(wish: Wish, session: Session) -> None:
    session.connection()
    raise_it(wish.error)


async def with_connection(wish: Wish, connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute("SELECT 1")
    raise_it(wish.error)


@pytest.fixture
async def calls(database_url: str, nats_server: NatsServer) -> AsyncIterator[Handling]:
    async with subscribed(database_url, nats_server.url) as sub, handling(sub) as calls:
        yield calls


def check(name: str, reason: str) -> None:
    """A reason names the line, and the class unless a refusal says it in words."""
    said, stack = stack_of(reason)
    assert "refusal" in name or ".raise_it:" in said, (name, reason)
    assert any(line.endswith("in raise_it") for line in stack), (name, reason)
    assert len(reason) < 2_000


@pytest.mark.parametrize("function", [plain, coroutine, with_session, with_connection])
@pytest.mark.parametrize("way", ["alone", "in a chunk", "in its validator"])
async def test_of_a_handler(calls: Handling, function: Callable[..., Any], way: str) -> None:
    handler, before = calls.handler(function), "at once: " if "validator" in way else ""
    ids = {await calls.received({"error": before + name}): name for name in (*NAMES, "none")}
    if way == "in a chunk":
        await calls.sub.chunk(handler).run([*ids])
    else:
        process = calls.process(handler)
        for id in ids:
            await process.process(id)
    for id, name in ids.items():
        row = await calls.sub.row(id)
        if name == "none":
            assert row["processed_at"] is not None
            continue
        dead = "refusal" in name or (row["last_error"] or "").startswith("Poison: ")
        assert (row["attempts"], await calls.state(id)) == (1, "dead" if dead else "open"), name
        if not dead or "refusal" in name:
            check(name, row["last_error"])


async def cancelling() -> None:
    """Cancel the current task, and wait for that."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def cancelling_late() -> None:
    """Cancel the current task, and end before that."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def cancelling_for_ever() -> None:
    """Cancel the current task again and again."""
    for _ in range(3):
        with suppress(asyncio.CancelledError):
            await cancelling()
    await cancelling()


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(cancelling())
        await cancelling()


async def leaking_a_timeout() -> None:
    """Begin a time limit that nobody ends."""
    await asyncio.timeout(0).__aenter__()


#: What a coroutine does to the task that it runs in, and whether that is a failure.
TO_ITSELF = {
    cancelling: True,
    cancelling_late: True,
    cancelling_for_ever: True,
    in_a_group: True,
    leaking_a_timeout: False,
}


@pytest.mark.parametrize("deed", TO_ITSELF)
@pytest.mark.parametrize("way", ["alone", "in a chunk"])
async def test_a_coroutine_that_cancels_itself_is_a_failed_attempt(
    calls: Handling, deed: Callable[[], Any], way: str
) -> None:
    async def handle(wish: Wish) -> None:
        await deed()

    async def writing(wish: Wish, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("SELECT 1")
        await deed()

    handler = calls.handler(handle, writing)
    ids = [await calls.received({"error": "x"}, version=version) for version in (1, 2)]
    if way == "in a chunk":
        await calls.sub.chunk(handler).run(ids)
    else:
        for id in ids:
            await calls.process(handler).process(id)
    for id in ids:
        row = await calls.sub.row(id)
        failed = "CancelledError" in (row["last_error"] or "")
        assert (row["attempts"], failed, row["processed_at"] is None) == (1, *[TO_ITSELF[deed]] * 2)


@pytest.mark.parametrize("deed", [deed for deed, fails in TO_ITSELF.items() if fails])
async def test_a_task_and_a_cron_job_that_cancel_themselves_have_failed(
    database_url: str, deed: Callable[[], Any]
) -> None:
    async def work(mail: Mail) -> None:
        await deed()

    async def command(at: Any) -> Work:
        await deed()
        return Work(at=at)

    async with tasking(database_url) as tasks:
        tasks.register(work, max_retries=0)
        [id] = tasks.schedule(Mail(n=1))
        await tasks.run(id)
        row = await tasks.row(id)
        assert (row["status"], row["attempts"]) == ("failed", 1)
    async with benched(database_url) as bench:
        bench.declare("job", command, max_attempts=1)
        await bench.worker().run(await bench.open(at=NOON))
        assert (bench.row(NOON)["state"], bench.row(NOON)["attempts"]) == ("failed", 1)


@pytest.mark.parametrize("threads", [True, False])
async def test_of_a_task_and_of_what_runs_when_it_has_failed(database_url: str, threads: bool) -> None:
    async with tasking(database_url) as tasks:
        tasks.threads = threads

        def work(mail: Mail) -> None:
            raise_it(mail.to)

        def correct(task: FailedTask, session: Session) -> None:
            session.connection()
            raise_it(task.payload["to"])

        tasks.register(work, max_retries=0)
        on_failed("mail", into=tasks.registry)(correct)
        ids = dict(zip(tasks.schedule(*(Mail(n=1, to=name) for name in NAMES)), NAMES, strict=True))
        for id, name in ids.items():
            await tasks.run(id)
            row = await tasks.row(id)
            assert (row["status"], row["attempts"]) == ("failed", 1), name
            check(name, row["last_error"])
        alerts = await tasks.query("SELECT class, reason FROM alerts WHERE class = 'failed_correction'")
        assert len(alerts) == len(NAMES)


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("where", ["in its command", "in its function"])
async def test_of_a_cron_job(database_url: str, kind: str, where: str) -> None:
    async with benched(database_url) as bench:
        names = iter(NAMES)

        def work(at: Any) -> Work:
            return Work(at=at) if "command" in where else raise_it(next(names))

        async def work_async(at: Any) -> Work:
            return work(at)

        bench.handle = lambda _: raise_it(next(names))
        bench.declare("job", work if kind == "plain" else work_async, max_attempts=1)
        for number, name in enumerate(NAMES):
            at = NOON + timedelta(minutes=number)
            await bench.worker().run(await bench.open(at=at))
            row = bench.row(at)
            assert (row["state"], row["attempts"]) == ("failed", 1), (name, row)
            if "refusal" not in name:
                check(name, row["error"])


async def test_of_a_correction(database_url: str, nats_server: NatsServer) -> None:
    transactions = HandlerTransactions(database_url, limit=timedelta(seconds=30), application_name="tests")
    names = iter(NAMES)

    async def correct(letter: DeadMessage, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("SELECT 1")
        raise_it(next(names))

    found = Corrections()
    on_dead_letter(into=found)(correct)
    async with at_the_desk(database_url, nats_server.url) as desk:
        by = CorrectDeadLetters(SUBSCRIPTION, found.of(SUBSCRIPTION, __name__), desk.incidents, transactions)
        await by.run()
        for _ in NAMES:
            await desk.incident(422)
        await by.run()
        ends = [str(row["correction"]) for row in await desk.rows()]
        assert len(ends) == len(NAMES)
        assert all(end.startswith("failed: ") for end in ends)
    await transactions.close()


def judging(name: str) -> RetryFunction:
    def judge(error: BaseException, attempt: int) -> NoReturn:
        raise_it(name)
        raise AssertionError

    return judge


async def test_of_a_retry_policy(calls: Handling) -> None:
    def fail(wish: Wish, context: MessageContext) -> None:
        raise ValueError

    for name in NAMES:
        handler = calls.handler(fail)
        route = handler.registry.find("vibe_created", 1)
        assert route is not None
        object.__setattr__(route.handler, "retry", RetryRule(judging(name)))
        id: UUID = await calls.received({"error": name})
        await calls.process(handler).process(id)
        row = await calls.sub.row(id)
        assert (row["attempts"], await calls.state(id)) == (1, "open"), name
        assert InvalidRetry.code in row["last_error"]
