"""Tasks that a worker claims before their turn: which, how they end, and how they are given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from relay.adapters.postgres.tasks import PostgresTasks
from relay.domain.controls import NO_LIMIT
from relay.domain.facts import TaskCompleted
from relay.domain.tasks import TaskRef
from tasks import TaskContext
from tasks.task_rows import TaskKey
from tests.integration.tasking import EFFECT, Mail, Tasks, tasking
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


def effective(mail: Mail, session: Session, context: TaskContext) -> None:
    session.execute(text(EFFECT.format(context.task_id, mail.n)))


def idle(mail: Mail, session: Session) -> None:
    """Ask for a session, and nothing of it."""


@pytest.fixture
async def tasks(database_url: str) -> AsyncIterator[Tasks]:
    async with tasking(database_url) as tasks:
        tasks.threads = True
        yield tasks


def scheduled(tasks: Tasks, count: int, **options: Any) -> list[UUID]:
    return tasks.schedule(*(Mail(n=n) for n in range(count)), **options)


def refs(*ids: UUID, task_type: str = "mail") -> list[TaskRef]:
    return [TaskRef(id, task_type, "default", 50) for id in ids]


async def claim_ahead(tasks: Tasks, *waiting: TaskRef) -> None:
    await asyncio.wait_for(asyncio.to_thread(tasks.claim_ahead, *waiting), 60)


def held(tasks: Tasks, queue: str = "default") -> list[UUID]:
    return [key.id for key in tasks.direct(queue).prefetch._held]


async def rows(tasks: Tasks, ids: list[UUID]) -> list[dict[str, Any]]:
    return [await tasks.row(id) for id in ids]


# --- which ---


async def test_those_that_wait_are_claimed_together_and_need_no_claim_in_their_turn(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.register(effective)
    ids = scheduled(tasks, 5)
    await claim_ahead(tasks, *refs(*ids))
    found = await rows(tasks, ids)
    assert len({row["claim_token"] for row in found}) == 1
    assert {(row["status"], row["attempts"], row["started_at"] is None) for row in found} == {
        ("delivered", 1, False)
    }
    monkeypatch.setattr(tasks.transactions, "claim", None)
    assert await asyncio.gather(*(tasks.run(id) for id in ids)) == [None] * 5
    assert await tasks.effects() == ids
    assert {(row["status"], row["attempts"]) for row in await rows(tasks, ids)} == {("completed", 1)}
    assert sorted(fact.task_id for fact in tasks.reported(TaskCompleted)) == sorted(ids)


async def test_only_what_never_began_is_claimed_ahead_and_nobody_is_waited_for(tasks: Tasks) -> None:
    tasks.register(effective)
    new, began, locked, taken, later, keyed = ids = scheduled(tasks, 6)
    for id, change in (
        (began, "started_at = now()"),
        (taken, "claim_token = gen_random_uuid(), claimed_until = now() + interval '1 hour'"),
        (later, "available_at = now() + interval '1 hour'"),
        (keyed, "concurrency_key = 'mail'"),
    ):
        await tasks.query(f"UPDATE task_outbox SET {change} WHERE id = %s", id)
    with psycopg.connect(tasks.url) as other:
        other.execute("SELECT 1 FROM task_outbox WHERE id = %s FOR UPDATE", [locked])
        await claim_ahead(tasks, *refs(*ids))
    assert held(tasks) == [new]
    # What it did not get is claimed when its turn comes.
    free = [new, began, locked, keyed]
    assert [await tasks.run(id) for id in free] == [None] * 4
    assert await tasks.effects() == free


async def test_one_that_began_before_is_claimed_when_it_is_asked_for(tasks: Tasks) -> None:
    tasks.register(effective)
    tried, new = scheduled(tasks, 2)
    await tasks.query("UPDATE task_outbox SET attempts = 1, started_at = now() WHERE id = %s", tried)
    ahead = tasks.direct().prefetch
    while ahead._size < 2:
        ahead._capacity()
    tasks.waiting = refs(new)
    claim = await asyncio.to_thread(ahead.claim, TaskKey(tried, "mail"))
    assert claim is not None
    assert (claim.id, claim.attempts, held(tasks)) == (tried, 2, [new])


async def test_types_with_limits_coroutines_and_those_that_are_tried_once_are_claimed_in_their_turn(
    tasks: Tasks,
) -> None:
    async def coroutine(mail: Mail) -> None: ...

    def once(mail: Mail) -> None: ...
    def limited(mail: Mail) -> None: ...
    def elsewhere(mail: Mail) -> None: ...

    tasks.register(coroutine, "coroutine")
    tasks.register(once, "once", max_retries=0)
    tasks.register(limited, "limited", rate_limit="100/1s")
    tasks.register(elsewhere, "elsewhere", queue="other")
    tasks.register(effective)
    [ours] = tasks.schedule(Mail(n=0))
    waiting = refs(ours)
    for task_type in ("coroutine", "once", "limited", "elsewhere"):
        queue = tasks.registry.handlers[task_type].queue
        [id] = tasks.schedule(Mail(n=1), task_type=task_type)
        waiting.append(TaskRef(id, task_type, queue, 50))
    waiting += refs(ours, task_type="unknown here")
    await claim_ahead(tasks, *waiting)
    assert held(tasks) == [ours]
    assert held(tasks, "other") == []
    assert [await tasks.run(task.id, task.type) for task in waiting[1:5]] == [None] * 4


async def test_one_that_is_tried_once_asks_for_no_others_either(tasks: Tasks) -> None:
    tasks.register(idle, "once", max_retries=0)
    tasks.register(effective)
    [once] = tasks.schedule(Mail(n=1), task_type="once")
    others = refs(*scheduled(tasks, 3))
    await claim_ahead(tasks, *others[:2])
    tasks.waiting = others[2:]
    assert await tasks.run(once, "once") is None
    assert held(tasks) == [other.id for other in others[:2]]


async def test_each_queue_has_claims_of_its_own(tasks: Tasks) -> None:
    tasks.register(effective)
    tasks.register(idle, "elsewhere", queue="other")
    scheduled(tasks, 1)
    [elsewhere] = tasks.schedule(Mail(n=1), task_type="elsewhere")
    await claim_ahead(tasks, TaskRef(elsewhere, "elsewhere", "other", 50))
    assert (held(tasks), held(tasks, "other")) == ([], [elsewhere])
    assert await tasks.run(elsewhere, "elsewhere") is None
    assert (held(tasks, "other"), (await tasks.row(elsewhere))["status"]) == ([], "completed")


async def test_one_that_is_just_being_delivered_is_waited_for_in_its_turn(tasks: Tasks) -> None:
    tasks.register(effective)
    ids = scheduled(tasks, 3)
    async with tasks.tasks.deliver("default", 10) as delivered:
        assert len(delivered) == 3
        await claim_ahead(tasks, *refs(*ids))
        assert held(tasks) == []
        running = asyncio.create_task(tasks.run(ids[0]))
        await eventually("its claim waits", lambda: tasks.query(WAITS))
    assert await asyncio.wait_for(running, 60) is None
    assert await tasks.effects() == ids[:1]


WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


# --- given back ---


async def test_what_is_given_back_is_as_if_nobody_had_taken_it(tasks: Tasks) -> None:
    tasks.register(effective)
    ids = scheduled(tasks, 4)
    await tasks.deliver()
    before = await rows(tasks, ids)
    await claim_ahead(tasks, *refs(*ids))
    assert [row["attempts"] for row in await rows(tasks, ids)] == [1] * 4
    await asyncio.to_thread(tasks.direct().prefetch.close)
    assert await rows(tasks, ids) == before
    # From then on each is claimed by itself.
    tasks.waiting = refs(*ids)
    assert [await tasks.run(id) for id in ids] == [None] * 4
    assert held(tasks) == []
    assert {row["attempts"] for row in await rows(tasks, ids)} == {1}


async def test_a_claim_that_somebody_else_has_by_now_is_not_given_back(tasks: Tasks) -> None:
    tasks.register(effective)
    stolen, ours = ids = scheduled(tasks, 2)
    await tasks.deliver()
    before = await tasks.row(ours)
    await claim_ahead(tasks, *refs(*ids))
    theirs = "UPDATE task_outbox SET claim_token = gen_random_uuid() WHERE id = %s"
    await tasks.query(theirs, stolen)
    taken = await tasks.row(stolen)
    await asyncio.to_thread(tasks.direct().prefetch.close)
    assert await rows(tasks, ids) == [taken, before]


# --- how they end ---


async def test_what_writes_nothing_is_completed_together_and_told_when_it_is(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    complete_all = PostgresTasks.complete_all

    async def count(self: PostgresTasks, claims: Any) -> Any:
        assert tasks.reported(TaskCompleted) == []
        found = await complete_all(self, claims)
        ended.append(len(found))
        return found

    monkeypatch.setattr(PostgresTasks, "complete_all", count)
    tasks.completions.done._pause = 0.5
    tasks.register(idle)
    ids = scheduled(tasks, 6)
    await claim_ahead(tasks, *refs(*ids))
    assert await asyncio.gather(*(tasks.run(id) for id in ids)) == [None] * 6
    assert ended == [6]
    assert {row["status"] for row in await rows(tasks, ids)} == {"completed"}
    noted = await tasks.query("SELECT message_id FROM processed_events WHERE handler = 'task:mail'")
    assert {row["message_id"] for row in noted} == set(ids)
    assert len(tasks.reported(TaskCompleted)) == 6


async def test_what_is_lost_or_locked_by_the_end_is_not_completed_with_the_others(tasks: Tasks) -> None:
    tasks.register(idle)
    lost, locked, ours = ids = scheduled(tasks, 3)
    claims = [await tasks.tasks.claim(id, "mail", timedelta(seconds=30), NO_LIMIT) for id in ids]
    await tasks.query("UPDATE task_outbox SET claim_token = gen_random_uuid() WHERE id = %s", lost)
    with psycopg.connect(tasks.url) as other:
        other.execute("SELECT 1 FROM task_outbox WHERE id = %s FOR UPDATE", [locked])
        ending = asyncio.create_task(tasks.tasks.complete_all(claims))  # type: ignore[arg-type]
        await eventually("the others are completed", lambda: tasks.query(COMPLETED))
        await eventually("the locked one is waited for", lambda: tasks.query(WAITS))
    assert [claim.id for claim in await asyncio.wait_for(ending, 60)] == [locked, ours]
    assert [row["status"] for row in await rows(tasks, ids)] == ["delivered", "completed", "completed"]
    assert len(await tasks.query("SELECT 1 FROM processed_events")) == 2


COMPLETED = "SELECT 1 FROM task_outbox WHERE status = 'completed'"


async def test_the_time_limit_of_the_type_holds_in_a_transaction_that_begins_late(tasks: Tasks) -> None:
    seen: list[Any] = []

    def look(mail: Mail, session: Session) -> None:
        seen.append(session.execute(text("SELECT current_setting('statement_timeout')")).scalar())

    tasks.register(look, time_limit="7s")
    [id] = scheduled(tasks, 1)
    await claim_ahead(tasks, *refs(id))
    assert await tasks.run(id) is None
    assert seen == ["6s"], "a statement ends a second before the limit"
    assert (await tasks.row(id))["status"] == "completed"


async def test_a_claim_ahead_that_was_lost_has_no_effect(tasks: Tasks) -> None:
    tasks.register(effective)
    [id] = scheduled(tasks, 1)
    await claim_ahead(tasks, *refs(id))
    await tasks.query("UPDATE task_outbox SET claim_token = gen_random_uuid()")
    theirs = await tasks.row(id)
    assert await tasks.run(id) is None
    assert (await tasks.effects(), await tasks.row(id)) == ([], theirs)
    assert tasks.reported(TaskCompleted) == []
