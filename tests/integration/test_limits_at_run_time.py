"""Limits that an operator sets at run time hold for all workers, spend no attempt, and can be taken back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from consumer.message_rows import MessageRows
from relay.adapters.postgres.circuits import PostgresCircuits
from relay.adapters.postgres.controls import KnownControls, PostgresControls
from relay.adapters.postgres.limited_inbox import LimitedInbox
from relay.adapters.postgres.pool import Pool
from relay.devstack import NatsServer
from relay.domain.controls import NO_LIMIT, Limit, What
from relay.domain.errors import InvalidRequest
from relay.domain.model import HandlerResult
from relay.domain.operators import Operator
from relay.execution.runners import Completions, RunOnLoop
from relay.ports import HandlerRequest
from tests.integration.consuming import SUBSCRIPTION, Handler, Subscription, subscribed
from tests.integration.tasking import Mail, Tasks, tasking

pytestmark = pytest.mark.anyio

ANN = Operator("ann", "the partner is slow")
#: What is known is too old at once: every look reads.
AT_ONCE = 0.0
#: Far longer than a test lasts: whoever comes second waits.
HOUR = timedelta(hours=1)


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as found:
        yield found


def controls_of(sub: Subscription) -> PostgresControls:
    return PostgresControls(sub.pool.connection)


async def configured(sub: Subscription, **values: Any) -> None:
    """Limit it as relay.toml does: no operator has done anything."""
    made = sub.messages

    def messages(handler: Any) -> MessageRows:
        rows: MessageRows = made(handler)
        rows.config = replace(rows.config, limit=Limit(**values))
        return rows

    sub.messages = messages  # type: ignore[method-assign]


def worker(sub: Subscription, handler: Any) -> RunOnLoop[Any, Any, Any, Any, Any, Any]:
    """One process of several: it shares nothing but the database."""
    rows: MessageRows = sub.messages(handler)
    rows.controls = KnownControls(sub.pool.connection, fresh=AT_ONCE)
    rows.limited = LimitedInbox(sub.pool, sub.inbox, sub.subscription)
    rows.enqueue = sub.enqueue
    completions = Completions(rows, asyncio.get_running_loop(), pause=0.0)
    run = RunOnLoop(rows, completions.settle)
    run.drain = completions.drain  # type: ignore[attr-defined]
    return run


async def handle(sub: Subscription, handler: Any, id: UUID) -> timedelta | None:
    run: Any = worker(sub, handler)
    try:
        delay: timedelta | None = await run.run(id)
        return delay
    finally:
        await run.drain()


async def limit(sub: Subscription, **values: Any) -> PostgresControls:
    controls = controls_of(sub)
    await controls.limit(What.SUBSCRIPTION, sub.subscription, Limit(**values), None, ANN)
    return controls


BOTH = pytest.mark.parametrize("limited", [limit, configured], ids=["by an operator", "by relay.toml"])


@BOTH
async def test_no_more_run_at_once_than_the_limit_says(sub: Subscription, limited: Any) -> None:
    first, second = await sub.received(), await sub.received()
    await limited(sub, concurrency=1)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(_request: HandlerRequest) -> HandlerResult:
        begun.set()
        await goes_on.wait()
        return HandlerResult.from_status(200)

    one = asyncio.create_task(handle(sub, Handler(slow), first))
    await begun.wait()
    other = Handler()
    assert await handle(sub, other, second) is not None, "it comes again"
    row = await sub.row(second)
    assert (other.requests, row["attempts"], row["next_attempt_at"]) == ([], 0, None)
    sub.enqueued.clear()
    goes_on.set()
    await one
    assert sub.enqueued == [second], "it has room at once, and does not wait for its time"
    assert await handle(sub, other, second) is None
    assert [it.message_id for it in other.requests] == [second]


@BOTH
async def test_a_rate_lets_one_begin_and_promises_the_others_a_time(sub: Subscription, limited: Any) -> None:
    ids = [await sub.received() for _ in range(3)]
    await limited(sub, interval=HOUR)
    handler = Handler()
    assert await handle(sub, handler, ids[0]) is None
    assert [await handle(sub, handler, id) is not None for id in ids[1:]] == [True, True]
    assert [it.message_id for it in handler.requests] == ids[:1]
    assert [(await sub.row(id))["attempts"] for id in ids] == [1, 0, 0]
    assert await sub.inbox.overdue(sub.subscription, 10, at_once=True) == [], "no sweep brings them before"


async def test_the_limit_of_an_operator_goes_before_the_configured_one(sub: Subscription) -> None:
    ids = [await sub.received() for _ in range(3)]
    await configured(sub, interval=HOUR)
    controls = await limit(sub, interval=timedelta(microseconds=1))
    handler = Handler()
    for id in ids[:2]:
        assert await handle(sub, handler, id) is None
    await controls.limit(What.SUBSCRIPTION, SUBSCRIPTION, NO_LIMIT, None, ANN)
    await handle(sub, handler, ids[2])
    assert await handle(sub, handler, await sub.received()) is not None, "what is configured holds again"
    assert [it.message_id for it in handler.requests][:2] == ids[:2]


async def test_a_release_with_a_higher_rate_does_not_wait_for_slots_of_the_lower_one(sub: Subscription) -> None:
    first, promised = [await sub.received() for _ in range(2)]
    await configured(sub, interval=HOUR)
    handler = Handler()
    for id in (first, promised):
        await handle(sub, handler, id)
    await configured(sub, interval=timedelta(milliseconds=1))
    new = await sub.received()
    assert await handle(sub, handler, promised) is None
    assert await handle(sub, handler, new) is None
    assert [it.message_id for it in handler.requests] == [first, promised, new]


async def test_it_keeps_its_place_in_the_window(sub: Subscription) -> None:
    ids = [await sub.received() for _ in range(2)]
    await limit(sub, interval=HOUR)
    for id in ids:
        await handle(sub, Handler(), id)
    assert await sub.inbox.let_go(sub.subscription, 0, 10) == [], "it has not failed: it is not let go"


async def test_lifting_a_limit_lets_all_go_on(sub: Subscription) -> None:
    ids = [await sub.received() for _ in range(2)]
    controls = await limit(sub, interval=HOUR)
    handler = Handler()
    for id in ids:
        await handle(sub, handler, id)
    before = await controls.limit(What.SUBSCRIPTION, SUBSCRIPTION, NO_LIMIT, None, ANN)
    assert (before, await controls.in_force()) == (Limit(interval=HOUR), [])
    assert [it.resumed for it in await PostgresCircuits(sub.pool).open_ones()] == [True], (
        "the upkeep enqueues them"
    )
    assert await sub.inbox.overdue(sub.subscription, 10, at_once=True) == ids[1:]
    await handle(sub, handler, ids[1])
    assert [it.message_id for it in handler.requests] == ids


async def test_undo_puts_the_former_limit_back(sub: Subscription) -> None:
    controls = await limit(sub, concurrency=5)
    await limit(sub, concurrency=1)
    [now] = await controls.in_force()
    assert (now.limit, now.former) == (Limit(concurrency=1), Limit(concurrency=5))
    assert await controls.restore(What.SUBSCRIPTION, SUBSCRIPTION, ANN) == Limit(concurrency=5)
    [again] = await controls.in_force()
    assert again.limit == Limit(concurrency=5)
    assert await controls.restore(What.SUBSCRIPTION, "another", ANN) is None


async def test_what_cannot_be_limited_is_refused(sub: Subscription) -> None:
    for what, name in ((What.EVENT_TYPE, "billed"), (What.PUBLISHING, ""), (What.TASK_QUEUE, "mail")):
        with pytest.raises(InvalidRequest):
            await controls_of(sub).limit(what, name, Limit(concurrency=1), None, ANN)
    with pytest.raises(InvalidRequest):
        await limit(sub, concurrency=0)


@pytest.mark.parametrize("threads", [False, True])
async def test_a_type_of_tasks_gets_a_rate_at_run_time(database_url: str, threads: bool) -> None:
    async with tasking(database_url) as mail, Pool(database_url, max_size=2, application_name="operator") as pool:
        ran: list[int] = []

        def send(payload: Mail) -> None:
            ran.append(payload.n)

        mail.register(send)
        mail.threads = threads
        controls, it = PostgresControls(pool.connection), mail
        it.rows.controls = KnownControls(pool.connection, fresh=AT_ONCE)
        await controls.limit(What.TASK_TYPE, "mail", Limit(interval=HOUR), None, ANN)
        first, second = it.schedule(Mail(n=1), Mail(n=2))
        await run(it, first)
        assert await run(it, second) is not None
        row = await it.row(second)
        assert (ran, row["attempts"], row["waits_for"]) == ([1], 0, "turn")
        await controls.restore(What.TASK_TYPE, "mail", ANN)
        assert (await it.row(second))["waits_for"] is None
        await run(it, second)
        assert ran == [1, 2]


async def run(mail: Tasks, id: UUID) -> timedelta | None:
    return await mail.run(id)
