"""The question whether anything is due, where the answer takes long."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import psycopg
import pytest

from relay.adapters.postgres import wakeup
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.migrations import upgrade
from relay.adapters.postgres.outbox import PostgresOutboxAdapter
from relay.adapters.postgres.poll_connection import PollTimes, Question, Rows
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.schedule import PostgresLease
from relay.adapters.postgres.wakeup import DueEvents, DuePollTimes, Wakeup
from relay.devstack import PostgresServer
from relay.domain.errors import SchemaMissing
from relay.domain.ordering import LANES
from tests.integration.publishing import NO_REST, Relay, event, query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_a_question_that_takes_long_is_seldom_asked(relay: Relay) -> None:
    relay.add(event("v1"))
    waker = Wakeup(relay.pool, relay.url, DuePollTimes(slow=-1.0, pause_factor=1e6))
    assert (await waker.due(10)).count == 1
    assert (await waker.due(10)).count == 1  # once may be chance
    assert await waker.due(10) == DueEvents(10, (1 << LANES) - 1)
    await waker.close()


async def test_a_process_that_is_late_for_the_answer_goes_on_asking(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take all for due, and send jobs for nothing to a machine that is busy."""
    waker, minutes = Wakeup(relay.pool, relay.url, DuePollTimes()), itertools.count(step=60)
    monkeypatch.setattr(wakeup, "time", SimpleNamespace(monotonic=lambda: next(minutes)))
    assert [await waker.due(10) for _ in range(3)] == [DueEvents(0, 0)] * 3
    await waker.close()


async def test_one_that_was_given_up_is_asked_again_at_once(relay: Relay) -> None:
    """The server may be frozen: when it is back, what waits in a back-off has to be sent anew, and not before."""
    # Who asks gives up, however slow it is.
    waker = Wakeup(relay.pool, relay.url, replace(NO_REST, polls=PollTimes(answer=60)))
    await waker.due(10)
    with psycopg.connect(relay.url) as conn:
        conn.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await waker.due(10)
    assert await waker.due(10) == DueEvents(0, 0)
    await waker.close()


async def test_one_without_an_answer_in_time_is_no_outage(relay: Relay) -> None:
    waker = Wakeup(relay.pool, relay.url, DuePollTimes(polls=PollTimes(answer=0.2)))
    await waker.due(10)
    with psycopg.connect(relay.url) as conn:
        conn.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
        assert await waker.due(10) == DueEvents(10, (1 << LANES) - 1)
    # It took long, too.
    assert await waker.due(10) == DueEvents(10, (1 << LANES) - 1)
    await waker.close()


async def test_questions_at_the_same_time_share_a_transaction(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    waker, asked = Wakeup(relay.pool, relay.url, NO_REST), list[list[str]]()
    ask = waker._polls.ask_all

    async def noted(questions: Sequence[Question]) -> Sequence[Rows]:
        asked.append([name for name, _ in questions])
        return await ask(questions)

    monkeypatch.setattr(waker._polls, "ask_all", noted)
    relay.add(event("v1"))
    due, *tasks = await asyncio.gather(waker.due(10), waker.tasks_due(), waker.tasks_overdue())
    assert (due.count, tasks) == (1, [False, False])
    assert asked == [["outbox/due", "tasks/pending_queues", "tasks/delivered_queues"]]
    await waker.close()


async def test_one_without_an_answer_in_time_takes_none_from_others(relay: Relay) -> None:
    waker = Wakeup(relay.pool, relay.url, replace(NO_REST, polls=PollTimes(answer=0.2)))
    await waker.due(10)
    with psycopg.connect(relay.url) as conn:
        conn.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
        found = await asyncio.gather(waker.tasks_due(), waker.due(10), waker.tasks_overdue())
    assert found == [False, DueEvents(10, (1 << LANES) - 1), False]
    await waker.close()


async def test_a_schema_that_is_older_than_the_process_is_told(postgres: PostgresServer) -> None:
    """By the scheduler, which asks first, by the publisher, and by whoever uses an inbox."""
    url = postgres.create_database(f"older_{uuid4().hex}")
    async with Pool(url, max_size=1, application_name="newer") as pool:
        with pytest.raises(SchemaMissing):
            await PostgresInboxAdapter(pool).due("any", 1)
        upgrade(url)
        with psycopg.connect(url) as conn:
            conn.execute("DROP FUNCTION relay_lane, relay_holds_back CASCADE")
        waker, outbox = Wakeup(pool, url, NO_REST), PostgresOutboxAdapter(pool.connection)
        with pytest.raises(SchemaMissing):
            await waker.due(1)
        await waker.close()
        for claim in (outbox.find_unpublished([0], 1, 1), outbox.find_one(uuid4())):
            with pytest.raises(SchemaMissing):
                await claim.__aenter__()
    postgres.drop_database(url.rpartition("/")[2])


async def test_who_leads_needs_one_connection_to_a_database(database_url: str) -> None:
    """The lease is renewed on the connection that asks; while that one waits for an answer, on one of the pool."""
    ours = (
        "SELECT application_name FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    async with Pool(database_url, max_size=2, application_name="pooled") as pool:
        waker = Wakeup(pool, database_url, NO_REST)
        await waker.due(1)
        lease = PostgresLease(waker.lend, uuid4(), "test")
        await pool.close()
        assert (await lease.take(timedelta(minutes=1))).term == 1
        assert query(database_url, ours) == [{"application_name": "jetrelay-wakeup"}]
    await waker.close()


@pytest.mark.parametrize(("patience", "name"), [(60.0, "jetrelay-wakeup"), (0.001, "pooled")])
async def test_the_lease_waits_for_a_short_question_and_not_for_a_long_one(
    database_url: str, patience: float, name: str
) -> None:
    """To connect costs more than most questions take. A lease is not lost for one that takes seconds."""
    times = replace(NO_REST, give_up=60.0, polls=PollTimes(lend=patience, answer=0))
    async with Pool(database_url, max_size=2, application_name="pooled") as pool:
        waker = Wakeup(pool, database_url, times)
        await waker.due(1)

        async def borrowed() -> str:
            async with waker.lend() as conn:
                [[found]] = await (await conn.execute("SHOW application_name")).fetchall()
                return str(found)

        with psycopg.connect(database_url) as conn:
            conn.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
            question = asyncio.create_task(waker.due(1))
            await eventually("the question is under way", waker._polls._lock.locked)
            asked = asyncio.create_task(borrowed())
            await (asked if name == "pooled" else asyncio.sleep(0))  # it has asked for the connection
        assert await asked == name
        await question
        await waker.close()


async def test_which_subscriptions_have_unfinished_messages_is_asked_without_the_pool(relay: Relay) -> None:
    names = ["one", "other, with a comma"]
    waker = Wakeup(relay.pool, relay.url, NO_REST)
    assert await waker.unfinished(names) == []
    values = "(gen_random_uuid(), 's', 'other, with a comma')"
    query(relay.url, f"INSERT INTO inbox_messages (message_id, subject, subscription) VALUES {values}")
    assert await waker.unfinished(names) == ["other, with a comma"]
    await waker.close()
    waker = Wakeup(relay.pool, relay.url, DuePollTimes(slow=1e6, pause_factor=1e6, polls=PollTimes(answer=0.2)))
    with psycopg.connect(relay.url) as conn:
        conn.execute("LOCK TABLE inbox_messages IN ACCESS EXCLUSIVE MODE")
        assert await waker.unfinished(names) == names, "it is not known, so all are looked after"
    assert await waker.unfinished(names) == names, "and after such an answer it is not asked for a while"
    await waker.close()
