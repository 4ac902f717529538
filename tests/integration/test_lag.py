"""The lag of a context, read from real servers: what more workers could do now, and errors for what is unknown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from relay.commands.lag import ReadLag
from relay.devstack import NatsServer
from relay.domain.errors import BrokerUnreachable, ConsumerMissing, DatabaseUnreachable, SchemaMissing
from relay.domain.lag import NONE_DUE, DueCount, StreamLag, TablesLag
from tests.integration.consuming import SUBSCRIPTION, Subscription, inbox_row, subscribed
from tests.integration.crowded import events, messages, tasks
from tests.integration.publishing import open_backlog_reader
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

AGO, LATER = "now() - interval '1 minute'", "now() + interval '1 hour'"
FAILED = {"publish_attempts": "1"}


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


async def tables(url: str, *subscriptions: str, dead_head_blocks: bool = False, **options: Any) -> TablesLag:
    async with open_backlog_reader(url, **options) as reader:
        return await reader.lag(subscriptions, dead_head_blocks=dead_head_blocks)


async def count(url: str, **options: Any) -> int:
    return (await tables(url, **options)).outbox.count


# --- the tables ---


async def test_of_the_outbox_what_could_be_published_now_counts(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        events(conn, 3, "'key' || n", occurred_at=AGO)
        events(conn, 1, "'again'", occurred_at="now() - interval '1 hour'", available_at=AGO, **FAILED)
        events(conn, 5, "'published' || n", published_at="now()", occurred_at=AGO)
        events(conn, 5, "'later' || n", available_at=LATER)
        events(conn, 5, "'dead' || n", dead_at="now()", **FAILED)
    found = (await tables(database_url)).outbox
    assert found.count == 4
    # Of one whose back-off is over, the time since then counts.
    assert 60 <= found.age_seconds < 1_800


@pytest.mark.parametrize(("dead", "blocks", "expected"), [(False, False, 1), (True, True, 1), (True, False, 4)])
async def test_what_waits_behind_a_failed_event_does_not_count(
    database_url: str, dead: bool, blocks: bool, expected: int
) -> None:
    state = {"dead_at": "now()"} if dead else {"available_at": LATER}
    with psycopg.connect(database_url, autocommit=True) as conn:
        events(conn, 1, "'stuck'", **state, **FAILED)
        events(conn, 3, "'stuck'")
        events(conn, 1, "'free'")
    assert await count(database_url, dead_head_blocks=blocks) == expected


async def test_a_failed_event_without_a_key_holds_back_nobody(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        events(conn, 1, "''", available_at=LATER, **FAILED)
        events(conn, 3, "''")
    assert await count(database_url) == 3


async def test_it_is_counted_up_to_a_limit(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        events(conn, 20, "'key' || n")
        events(conn, 20, "'key' || n", available_at=AGO)
        messages(conn, 1, 20, "up")
        tasks(conn, 20)
        tasks(conn, 20, status="'delivered'", enqueued_at=AGO)
    found = await tables(database_url, "up", counted=10)
    assert (found.outbox.count, found.tasks.count, found.inbox["up"].count) == (10, 10, 10)


async def test_of_the_inbox_what_could_be_handled_now_counts_for_each_subscription(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        messages(conn, 1, 4, "up")
        messages(conn, 10, 2, "up", enqueued_at=LATER, next_attempt_at=LATER)  # in back-off
        messages(conn, 20, 2, "up", enqueued_at="NULL")  # waits for its turn
        messages(conn, 30, 2, "up", processed_at="clock_timestamp()")
        messages(conn, 40, 2, "up", dead_lettered_at="now()")
        messages(conn, 50, 1, "other")
    found = await tables(database_url, "up", "other", "quiet")
    assert {name: due.count for name, due in found.inbox.items()} == {"up": 4, "other": 1, "quiet": 0}
    assert found.inbox["up"].age_seconds >= 600
    assert found.inbox["quiet"] == NONE_DUE


async def test_while_a_handler_is_away_none_of_its_messages_counts(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        for name in ("away", "there"):
            messages(conn, 1, 3, name)
        conn.execute("INSERT INTO handler_circuits (subscription, opened_at) VALUES ('away', now())")
    found = (await tables(database_url, "away", "there")).inbox
    assert {name: it.count for name, it in found.items()} == {"away": 0, "there": 3}


async def test_of_the_tasks_those_that_could_run_now_count(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        tasks(conn, 2)
        tasks(conn, 3, available_at=AGO, created_at="now() - interval '1 hour'")
        tasks(conn, 4, status="'delivered'", enqueued_at="now()")
        tasks(conn, 5, available_at=LATER)
        tasks(conn, 5, status="'delivered'", enqueued_at=AGO, next_attempt_at=LATER, waits_for="'room'")
        tasks(conn, 5, status="'completed'", finished_at="now()")
    found = (await tables(database_url)).tasks
    assert found.count == 9
    assert 60 <= found.age_seconds < 1_800


async def test_an_event_from_a_clock_ahead_has_no_negative_age(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        events(conn, 1, "'key'", occurred_at="now() + interval '30 seconds'")
    assert (await tables(database_url)).outbox == DueCount(1, 0.0)


# --- a context ---


def reading(sub: Subscription, timeout: float = 60.0, **consumers: Any) -> ReadLag:
    async def ask() -> TablesLag:
        return await tables(sub.url, SUBSCRIPTION)

    return ReadLag("sea", ask, {SUBSCRIPTION: sub.consumer, **consumers}, timeout=timeout)


async def test_a_subscription_has_what_is_in_its_stream_and_in_its_inbox(sub: Subscription) -> None:
    for _ in range(3):
        await sub.send()
    assert (await reading(sub).read()).streams == {SUBSCRIPTION: StreamLag(pending=3, unacknowledged=0)}
    await sub.pull().accept(await sub.fetch())
    await sub.send()

    async def counted() -> bool:
        found = (await reading(sub).read()).of(SUBSCRIPTION)
        return getattr(found, "stream", None) == StreamLag(pending=1, unacknowledged=3) and found.count == 4

    await eventually("three are delivered, one is to come", counted)


async def test_a_missing_consumer_is_an_error_of_its_subscription_only(sub: Subscription) -> None:
    await sub.js.delete_consumer(sub.stream, "down")
    found = await reading(sub).read()
    assert isinstance(found.of(SUBSCRIPTION), ConsumerMissing)
    assert isinstance(found.tables, TablesLag)
    await sub.js.delete_stream(sub.stream)
    assert isinstance((await reading(sub).read()).of(SUBSCRIPTION), ConsumerMissing)


async def test_servers_that_are_away_are_errors(database_url: str, own_nats: NatsServer) -> None:
    async with subscribed(database_url, own_nats.url) as sub:
        sub.url = "postgresql://sea:hunter2@127.0.0.1:1/sea"
        own_nats.kill()
        found = await reading(sub).read()
        assert [type(it) for it in found.errors] == [DatabaseUnreachable, BrokerUnreachable]
        own_nats.start()


async def test_a_database_that_does_not_answer_is_away(sub: Subscription) -> None:
    with psycopg.connect(sub.url) as lock:
        lock.execute("LOCK outbox_events")
        found = await reading(sub, timeout=0.2).read()
    assert isinstance(found.tables, DatabaseUnreachable)
    assert "no answer" in found.tables.message


async def test_a_database_without_tables_is_an_error(sub: Subscription, postgres: Any) -> None:
    sub.url = postgres.url
    assert isinstance((await reading(sub).read()).tables, SchemaMissing)


async def test_what_was_handled_is_no_lag(sub: Subscription) -> None:
    row = inbox_row(stream=sub.stream)
    await sub.inbox.insert([row])
    claim = await sub.inbox.claim(row.message_id, timedelta(seconds=30))
    assert (await tables(sub.url, SUBSCRIPTION)).inbox[SUBSCRIPTION].count == 1
    assert claim is not None
    await sub.inbox.mark_all_processed([claim])
    assert (await tables(sub.url, SUBSCRIPTION)).inbox[SUBSCRIPTION] == NONE_DUE
