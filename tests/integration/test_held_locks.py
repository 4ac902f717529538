"""A lock on a table of the application, or a lost conflict, is not the message's fault: it spends no attempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from relay.devstack import NatsServer
from relay.domain.reasons import code_of
from tests.integration.consuming import subscribed
from tests.integration.python_handling import KINDS, Handling, Vibe, handling
from tests.integration.tasking import Mail, Tasks, tasking
from tests.integration.test_retry_later import age, run, wait_of

pytestmark = pytest.mark.anyio

ROW = "UPDATE stock SET n = n + 1"
LOCKED_ROW = "SELECT n FROM stock FOR UPDATE"
LOCKED_TABLE = "LOCK TABLE stock IN ACCESS EXCLUSIVE MODE"
LOSE = "DO $$ BEGIN RAISE 'lost' USING ERRCODE = '{}'; END $$"
#: What another session holds, and what a function does: all of it runs into the lock.
HELD = {
    "row, no wait": (LOCKED_ROW, ["SELECT n FROM stock FOR UPDATE NOWAIT"]),
    "row, lock_timeout": (LOCKED_ROW, ["SET LOCAL lock_timeout = '100ms'", ROW]),
    "row, statement_timeout": (LOCKED_ROW, ["SET LOCAL statement_timeout = '300ms'", ROW]),
    "row, time limit": (LOCKED_ROW, [ROW]),
    "table, no wait": (LOCKED_TABLE, ["LOCK TABLE stock NOWAIT"]),
    "table, lock_timeout": (LOCKED_TABLE, ["SET LOCAL lock_timeout = '100ms'", ROW]),
    "table, statement_timeout": (LOCKED_TABLE, ["SET LOCAL statement_timeout = '700ms'", ROW]),
    "table, time limit": (LOCKED_TABLE, [ROW]),
    "deadlock": ("SELECT 1", [LOSE.format("40P01")]),
    "serialization": ("SELECT 1", [LOSE.format("40001")]),
}
RUNNERS = [(how, kind) for how in ("alone", "chunk") for kind in KINDS] + [("ahead", "sync_session")]


@pytest.fixture
async def calls(database_url: str, nats_server: NatsServer) -> AsyncIterator[Handling]:
    async with subscribed(database_url, nats_server.url) as sub, handling(sub) as calls:
        await sub.query("CREATE TABLE stock AS SELECT 1 AS n")
        yield calls


def doing(name: str, steps: list[str]) -> Callable[[Any], Any]:
    """What a function of this kind does with its session or connection."""
    said = [text(step) if name.endswith("session") else step for step in steps]

    def then(given: Any) -> None:
        for step in said:
            given.execute(step)

    async def awaited(given: Any) -> None:
        for step in said:
            await given.execute(step)

    return awaited if name.startswith("async") else then


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize(("how", "kind"), RUNNERS)
async def test_a_lock_of_another_session_spends_no_attempt(
    calls: Handling, how: str, kind: str, held: str
) -> None:
    lock, steps = HELD[held]
    message_id = await calls.received()
    handler = calls.handler(KINDS[kind](doing(kind, steps)), timeout=2)
    with psycopg.connect(calls.sub.url) as other:
        other.execute(lock)
        await run(calls, how, handler, message_id, max_attempts=2)
        row = await calls.sub.row(message_id)
        assert (row["attempts"], await calls.state(message_id), await calls.effects()) == (0, "open", [])
        assert row["last_error"]
        assert await wait_of(calls.sub, message_id) <= 10
        other.rollback()
    if lock != "SELECT 1":
        await calls.again(message_id, handler)
        assert await calls.state(message_id) == "processed"


async def test_a_lock_that_is_held_for_a_day_spends_attempts(calls: Handling) -> None:
    lock, steps = HELD["row, no wait"]
    message_id = await calls.received()
    await age(calls.sub, message_id, "25 hours")
    handler = calls.handler(KINDS["sync_session"](doing("sync_session", steps)))
    with psycopg.connect(calls.sub.url) as other:
        other.execute(lock)
        await run(calls, "alone", handler, message_id, max_attempts=2)
    assert (await calls.sub.row(message_id))["attempts"] == 1


async def test_a_slow_statement_is_a_failed_attempt(calls: Handling) -> None:
    message_id = await calls.received()
    slow = ["SET LOCAL statement_timeout = '100ms'", "SELECT pg_sleep(1)"]
    handler = calls.handler(KINDS["sync_session"](doing("sync_session", slow)))
    await run(calls, "alone", handler, message_id)
    assert (await calls.sub.row(message_id))["attempts"] == 1


#: What a function may lock itself before it takes too long.
OWN = {
    "a temporary table": "CREATE TEMP TABLE mine (n int)",
    "a table": LOCKED_TABLE,
    "a table of its own": "CREATE TABLE new (n int)",
}


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize(("how", "kind"), RUNNERS)
async def test_a_function_that_takes_too_long_with_locks_of_its_own_spends_an_attempt(
    calls: Handling, how: str, kind: str, own: str
) -> None:
    go_on = threading.Event()
    act = doing(kind, [OWN[own]])

    async def awaited(given: Any) -> None:
        await act(given)
        await asyncio.sleep(60)

    def hang(given: Any) -> None:
        act(given)
        go_on.wait(60)

    message_id = await calls.received()
    handler = calls.handler(
        KINDS[kind](awaited if kind.startswith("async") else hang), timeout=1, limit=timedelta(seconds=60)
    )
    try:
        await run(calls, how, handler, message_id)
    finally:
        go_on.set()
    assert (await calls.sub.row(message_id))["attempts"] == 1


async def test_a_statement_that_is_slow_behind_a_lock_of_a_function_spends_an_attempt(calls: Handling) -> None:
    """One function of a chunk locks a table; the statement of the next is slow by itself."""
    go_on = threading.Event()

    def hang(_vibe: Vibe, connection: psycopg.Connection[Any]) -> None:
        connection.execute(LOCKED_TABLE)
        go_on.wait(60)

    first = await calls.received()
    held = asyncio.ensure_future(run(calls, "alone", calls.handler(hang, timeout=30), first))
    message_id = await calls.received()
    slow = ["SET LOCAL statement_timeout = '800ms'", "SELECT pg_sleep(5)"]
    try:
        await run(calls, "alone", calls.handler(KINDS["sync_session"](doing("sync_session", slow))), message_id)
    finally:
        go_on.set()
        await held
    assert (await calls.sub.row(message_id))["attempts"] == 1


def by_psycopg(url: str) -> Callable[..., Any]:
    def handle(vibe: Vibe) -> None:
        with psycopg.connect(url) as own:
            own.execute("SELECT n FROM stock FOR UPDATE NOWAIT")

    return handle


def by_asyncpg(url: str) -> Callable[..., Any]:
    import asyncpg

    async def handle(vibe: Vibe) -> None:
        own = await asyncpg.connect(url)
        try:
            await own.execute("SELECT n FROM stock FOR UPDATE NOWAIT")
        finally:
            await own.close()

    return handle


@pytest.mark.parametrize("library", [by_psycopg, by_asyncpg])
async def test_the_connection_may_be_the_functions_own(calls: Handling, library: Callable[[str], Any]) -> None:
    message_id = await calls.received()
    handler = calls.handler(library(calls.sub.url))
    with psycopg.connect(calls.sub.url) as other:
        other.execute(LOCKED_ROW)
        await run(calls, "alone", handler, message_id, max_attempts=1)
    row = await calls.sub.row(message_id)
    assert (row["attempts"], code_of(row["last_error"]).startswith("raised_Lock")) == (0, True)


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize(
    "held", ["row, no wait", "row, statement_timeout", "table, statement_timeout", "deadlock"]
)
async def test_a_task_spends_no_attempt_either(database_url: str, held: str, *, threads: bool) -> None:
    lock, steps = HELD[held]

    def store(_mail: Mail, connection: psycopg.Connection[Any]) -> None:
        for step in steps:
            connection.execute(step)  # type: ignore[call-overload]

    async with tasking(database_url) as tasks:
        tasks.threads = threads
        await tasks.query("CREATE TABLE stock AS SELECT 1 AS n")
        await _put_off(tasks, store, lock)


async def _put_off(tasks: Tasks, function: Callable[..., Any], lock: str) -> None:
    tasks.register(function, max_retries=0)
    [id] = tasks.schedule(Mail(n=1))
    with psycopg.connect(tasks.url) as other:
        other.execute(lock)  # type: ignore[call-overload]
        await tasks.run(id)
    row = await tasks.row(id)
    assert (row["status"], row["attempts"]) == ("delivered", 0)
    assert row["next_attempt_at"] <= datetime.now(UTC) + timedelta(seconds=10)
