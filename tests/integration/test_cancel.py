"""A producer takes back what has not left: exactly that, whatever publishers do meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from relay import Outbox
from relay.adapters.postgres.row_operations import EventFilter, PostgresOutboxOperations
from relay.devstack import NatsServer
from relay.domain.errors import InvalidKey, NoTransaction, UnsupportedTarget
from relay.domain.operators import Operator
from tests.integration.crowded import events, repeatable
from tests.integration.incidents import waiting_for_locks
from tests.integration.plans import Plan, held_to
from tests.integration.publishing import ALL, KINDS, Producer, Relay, event, producing, query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)
#: Explains the statements of functions, too.
NESTED = """
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0;
SET auto_explain.log_nested_statements = on;
SET auto_explain.log_analyze = on;
SET auto_explain.log_format = json;
SET client_min_messages = log;
"""
BOX = Outbox("vibespro")


@pytest.fixture
async def relay(database_url: str, nats_server: NatsServer) -> AsyncIterator[Relay]:
    async with Relay(database_url, nats_server.url) as relay:
        await relay.create_stream()
        yield relay


async def cancelled(producer: Producer, **which: Any) -> list[Any]:
    if producer.begin is not None:
        await producer.begin()
    found = BOX.cancel(producer.target, **which)
    return list(await found if isinstance(found, Awaitable) else found)


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_producer_cancels_in_its_transaction(database_url: str, kind: str) -> None:
    async with producing(kind, database_url) as producer:
        first, second = await producer.add(event("a", deliver_at=HOUR), event("b", deliver_at=HOUR))
        await producer.call("commit")
        assert await cancelled(producer, id=first) == [first]
        await producer.call("rollback")
        assert await cancelled(producer, key="vibe:a") == [first]
        [own] = await producer.add(event("a"))
        assert await cancelled(producer, key="vibe:a") == [own]
        assert await cancelled(producer, id=first) == []
        await producer.call("commit")
    rows = query(
        database_url, "SELECT id, published_at IS NULL AS waits, publish_error FROM outbox_events ORDER BY seq"
    )
    assert [(row["id"], row["waits"]) for row in rows] == [(first, False), (second, True), (own, False)]
    assert rows[0]["publish_error"].startswith("CANCELLED: ")


async def test_what_is_cancelled_reaches_nobody_and_an_operator_may_reopen_it(relay: Relay) -> None:
    first, second = relay.add(event("a"), event("a"))
    with psycopg.connect(relay.url) as connection:
        assert relay.outbox.cancel(connection, id=first) == [first]
    await relay.drained()
    assert await relay.ids() == [str(second)]
    operations = PostgresOutboxOperations(relay.pool.connection)
    [found] = (await operations.find(EventFilter(statuses=["discarded"]), 9)).items
    assert (found["id"], found["error_code"]) == (first, "cancelled")
    assert query(relay.url, "SELECT * FROM alerts") == []
    assert (await operations.reopen([first], Operator("bob"))).done == (str(first),)
    await relay.drained()
    assert await relay.ids() == [str(second), str(first)]


async def test_an_event_in_work_is_published_and_the_cancel_says_so(relay: Relay) -> None:
    [id] = relay.add(event("a"))
    found: list[Any] = []

    def cancel() -> None:
        with psycopg.connect(relay.url) as connection:
            found.extend(relay.outbox.cancel(connection, id=id))

    async def begun(_claim: Any) -> None:
        tasks.append(asyncio.create_task(asyncio.to_thread(cancel)))
        await eventually("it waits for the publisher", waits)

    async def waits() -> bool:
        return waiting_for_locks(relay.url) > 0

    tasks: list[asyncio.Task[None]] = []
    await relay.command(claimed=begun).drain(ALL)
    await asyncio.gather(*tasks)
    assert found == []
    assert await relay.ids() == [str(id)]


async def test_while_a_cancel_is_open_nobody_publishes_and_later_ones_wait(relay: Relay) -> None:
    first, second, other = relay.add(event("a"), event("a"), event("b"))
    with psycopg.connect(relay.url) as connection:
        relay.outbox.cancel(connection, id=first)
        await relay.command().drain(ALL)
        assert await relay.ids() == [str(other)]
        connection.rollback()
    await relay.drained()
    assert await relay.ids() == [str(it) for it in (other, first, second)]


async def test_a_delayed_event_holds_back_no_later_one_of_its_key(relay: Relay) -> None:
    delayed, now = relay.add(event("a", deliver_at=HOUR), event("a"))
    await relay.command().drain(ALL)
    assert await relay.ids() == [str(now)]
    query(relay.url, "UPDATE outbox_events SET available_at = now() WHERE id = %s", delayed)
    await relay.drained()
    assert await relay.ids() == [str(now), str(delayed)]


def test_a_cancel_needs_one_way_to_say_which_and_a_transaction(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        for which in ({}, {"id": uuid4(), "key": "a"}):
            with pytest.raises(InvalidKey):
                BOX.cancel(connection, **which)
        with pytest.raises(NoTransaction):
            BOX.cancel(connection, id=uuid4())
    with pytest.raises(UnsupportedTarget):
        BOX.cancel(object(), id=uuid4())  # type: ignore[call-overload]


async def test_a_text_stands_for_its_row(relay: Relay) -> None:
    [row] = relay.add(event("a", id="evt_1"))
    with psycopg.connect(relay.url) as connection:
        assert relay.outbox.cancel(connection, id="evt_1") == [row]


async def test_a_key_is_found_by_indexes_however_many_events_wait(database_url: str) -> None:
    """Of each state 20,000 of other keys wait, and two of the key."""
    states = ({}, {"available_at": "now() + interval '1 day'"}, {"publish_attempts": "1", "dead_at": "now()"})
    plans: list[str] = []
    with psycopg.connect(database_url, autocommit=True) as conn:
        repeatable(conn)
        for columns in states:
            events(conn, 20_000 if "dead_at" not in columns else 20, "'key' || n", **columns)
            events(conn, 2, "'wanted'", **columns)
        conn.execute("ANALYZE outbox_events")
        conn.execute(NESTED)
        conn.add_notice_handler(lambda notice: plans.append(str(notice.message_primary)))
        found = conn.execute("SELECT relay_cancel_events(NULL, 'wanted')").fetchall()
    assert len(found) == 6
    [text] = [it for it in plans if "FOR UPDATE" in it]
    plan = Plan(json.loads(text[text.index("{") :])["Plan"])
    assert {"idx_outbox_ready", "idx_outbox_delayed", "idx_outbox_dead", "outbox_events_pkey"} <= plan.indexes()
    held_to(plan, 40, 10)
