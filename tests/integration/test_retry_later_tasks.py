"""A task says when it is run again, or its policy does, however its worker runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from relay.domain.facts import TaskRetried
from relay.domain.reasons import code_of
from tasks import Dead, Never, RetryLater, TaskContext
from tests.integration.tasking import EFFECT, Mail, Tasks, tasking

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["in a thread", "in a thread, claimed ahead", "on the loop"])
async def tasks(database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Tasks]:
    async with tasking(database_url) as tasks:
        tasks.threads, tasks.ahead = "thread" in request.param, "ahead" in request.param
        yield tasks


class Closed(Exception):
    """What the tasks below raise, unless they ask to be run later."""


def plain(_mail: Mail) -> None:
    raise ERRORS[0]


def writing(mail: Mail, connection: psycopg.Connection[Any], context: TaskContext) -> None:
    connection.execute(EFFECT.format(context.task_id, mail.n))
    raise ERRORS[0]


async def awaited(mail: Mail, session: AsyncSession, context: TaskContext) -> None:
    await session.execute(text(EFFECT.format(context.task_id, mail.n)))
    raise ERRORS[0]


FUNCTIONS = [plain, writing, awaited]
#: What the functions raise in this test.
ERRORS: list[Exception] = []


@pytest.fixture(params=FUNCTIONS)
def function(request: pytest.FixtureRequest) -> Any:
    ERRORS[:] = [Closed("secret")]
    return request.param


async def tried(tasks: Tasks, id: UUID) -> tuple[str, int, str]:
    """Make one attempt; returns the status, the attempts and the code of the error."""
    await tasks.make_due(id)
    await tasks.run(id)
    row = await tasks.row(id)
    return row["status"], row["attempts"], code_of(row["last_error"])


async def wait_of(tasks: Tasks, id: UUID) -> float:
    [row] = await tasks.query(
        "SELECT extract(epoch FROM next_attempt_at - now())::float AS wait FROM task_outbox WHERE id = %s", id
    )
    return float(row["wait"])


async def test_a_task_that_asks_to_run_later_spends_no_attempt(tasks: Tasks, function: Any) -> None:
    ERRORS[:] = [RetryLater("the bank is closed", delay=timedelta(seconds=90))]
    tasks.register(function, max_retries=1)
    [id] = tasks.schedule(Mail(n=1))
    for _ in range(3):
        assert await tried(tasks, id) == ("delivered", 0, "raised_RetryLater")
        assert 80 <= await wait_of(tasks, id) <= 90 * 1.2
    assert await tasks.effects() == []
    assert {fact.delay_seconds >= 90 for fact in tasks.reported(TaskRetried)} == {True}


@pytest.mark.parametrize("column", ["created_at", "available_at"])
async def test_a_task_that_is_a_day_overdue_spends_its_attempts(tasks: Tasks, function: Any, column: str) -> None:
    ERRORS[:] = [RetryLater(delay=90)]
    tasks.register(function, max_retries=1)
    [id] = tasks.schedule(Mail(n=1))
    await tasks.query(f"UPDATE task_outbox SET {column} = now() - interval '25 hours' WHERE id = %s", id)
    assert [(await tried(tasks, id))[:2] for _ in range(2)] == [("delivered", 1), ("failed", 2)]


async def test_a_policy_says_when_a_task_is_tried_again_and_that_counts(tasks: Tasks, function: Any) -> None:
    asked: list[tuple[str, int]] = []

    def policy(error: Exception, attempt: int) -> float:
        asked.append((type(error).__name__, attempt))
        return 40.0 * attempt

    tasks.register(function, max_retries=1, retry=policy)
    [id] = tasks.schedule(Mail(n=1))
    assert await tried(tasks, id) == ("delivered", 1, "raised_Closed")
    assert 30 <= await wait_of(tasks, id) <= 40
    assert await tried(tasks, id) == ("failed", 2, "raised_Closed")
    assert asked == [("Closed", 1), ("Closed", 2)]


@pytest.mark.parametrize("says", [Never, Dead])
async def test_a_policy_ends_a_task(tasks: Tasks, function: Any, says: Any) -> None:
    tasks.register(function, retry=lambda _error, _attempt: says)
    [id] = tasks.schedule(Mail(n=1))
    assert await tried(tasks, id) == ("failed", 1, "raised_Closed")
    assert await tasks.effects() == []


@pytest.mark.parametrize("says", [None, -1, float("nan"), 10**400, "5"])
async def test_a_bad_policy_harms_no_task(tasks: Tasks, function: Any, says: Any) -> None:
    tasks.register(function, retry=lambda _error, _attempt: says, backoff=("30s", "30s"))
    [id] = tasks.schedule(Mail(n=1))
    assert await tried(tasks, id) == ("delivered", 1, "raised_Closed")
    assert 15 <= await wait_of(tasks, id) <= 30
    assert "INVALID_RETRY" in (await tasks.row(id))["last_error"]
