"""The connection that is asked and hears: answers, notifications, and whatever may come in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial

import psycopg
import pytest

from relay.adapters.postgres.migrations import upgrade
from relay.adapters.postgres.poll_connection import PollConnection, PollTimes
from relay.devstack import PostgresServer
from relay.domain.errors import DatabaseUnreachable
from tests.integration.publishing import query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

LIMIT = {"limit": 5}
EVENTS = (
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)"
    " SELECT gen_random_uuid(), 'case', n::text, 'opened', '{}' FROM generate_series(1, 3) AS n"
)
OURS = "application_name = 'jetrelay-wakeup' AND datname = current_database()"
CONNECTED = f"SELECT pid FROM pg_stat_activity WHERE {OURS}"
WAITS = f"SELECT pid FROM pg_stat_activity WHERE {OURS} AND wait_event_type = 'Lock'"
END = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}"


USUAL = PollTimes()


class Watched:
    """A connection and what it heard."""

    def __init__(self, url: str, times: PollTimes = USUAL) -> None:
        self.url = url
        self.heard: list[str | None] = []
        self.watch = PollConnection(url, "news", self.heard.append, times)

    async def due(self) -> int:
        rows = await self.watch.ask("outbox/due", LIMIT)
        return int(rows[0]["count"] or 0)


@pytest.fixture
async def watched(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Watched]:
    """With the usual times, or those that a test gives as its parameter."""
    watched = Watched(database_url, getattr(request, "param", USUAL))
    yield watched
    await watched.watch.close()


@pytest.fixture
def locked(database_url: str) -> Iterator[psycopg.Connection]:
    """Nobody gets an answer about events as long as it is open."""
    with psycopg.connect(database_url) as connection:
        connection.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
        yield connection


async def test_it_answers_what_several_ask_at_once(watched: Watched) -> None:
    query(watched.url, EVENTS)
    assert await asyncio.gather(*(watched.due() for _ in range(20))) == [3] * 20
    assert (await watched.watch.ask("outbox/due", {"limit": 2}))[0]["count"] == 2
    assert await watched.watch.ask("tasks/pending_queues") == []
    assert len(query(watched.url, CONNECTED)) == 1


async def test_it_hears_between_questions_and_during_them(watched: Watched) -> None:
    assert await watched.due() == 0
    await eventually("it says that it listens", lambda: watched.heard == [None])
    query(watched.url, "NOTIFY news, 'a'")
    await eventually("it heard", lambda: watched.heard == [None, "a"])
    query(watched.url, "NOTIFY news, 'b'")
    assert await watched.due() == 0
    await eventually("it heard that too", lambda: watched.heard == [None, "a", "b"])
    query(watched.url, "NOTIFY other, 'c'")
    # A question that it has not been asked before is made known to the server first.
    query(watched.url, "NOTIFY news, 'd'")
    assert await watched.watch.ask("tasks/pending_queues") == []
    await eventually("nothing else", lambda: watched.heard == [None, "a", "b", "d"])


async def test_an_answer_that_nobody_waits_for_is_no_answer_to_the_next_question(
    watched: Watched, locked: psycopg.Connection
) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await watched.due()
    locked.execute(EVENTS)
    locked.commit()
    assert await watched.watch.ask("tasks/pending_queues") == []
    assert await watched.due() == 3


@pytest.mark.parametrize("watched", [PollTimes(answer=0.2)], indirect=True)
async def test_a_question_that_takes_too_long_leaves_others_alone(watched: Watched) -> None:
    assert await watched.due() == 0
    tasks = partial(watched.watch.ask, "tasks/pending_queues")
    assert await tasks() == []
    with psycopg.connect(watched.url) as locked:
        locked.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
        late, other = await asyncio.gather(watched.due(), tasks(), return_exceptions=True)
    assert (type(late), other) == (DatabaseUnreachable, [])
    assert await watched.due() == 0
    assert watched.heard == [None]


@pytest.mark.parametrize("watched", [PollTimes(reconnect=0.05)], indirect=True)
async def test_a_lost_connection_is_made_again_though_nobody_asks(watched: Watched) -> None:
    """What was notified meanwhile is lost: whoever listens is told to look, and by looking connects."""
    assert await watched.due() == 0
    await eventually("it listens", lambda: watched.heard == [None])
    query(watched.url, END)
    await eventually("it says that it may have missed something", lambda: watched.heard == [None, None])
    assert await watched.due() == 0
    await eventually("it listens again", lambda: watched.heard == [None] * 3)
    query(watched.url, "NOTIFY news, 'a'")
    await eventually("it hears", lambda: watched.heard[-1] == "a")


async def test_an_outage_is_one_and_it_ends(own_postgres: PostgresServer) -> None:
    url = own_postgres.create_database("sea")
    await asyncio.to_thread(upgrade, url)
    watched = Watched(url, PollTimes(reconnect=0.05))
    assert await watched.due() == 0
    await asyncio.to_thread(own_postgres.stop, "immediate")
    found = await asyncio.gather(*(watched.due() for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in found] == [DatabaseUnreachable] * 3
    count = len(watched.heard)
    await eventually("it asks to be asked", lambda: len(watched.heard) > count)
    await asyncio.to_thread(own_postgres.start)

    async def answered() -> bool:
        try:
            return await watched.due() == 0
        except DatabaseUnreachable:
            return False

    await eventually("it answers", answered)
    await watched.watch.close()


@pytest.mark.parametrize("watched", [PollTimes(reconnect=0.01)], indirect=True)
async def test_once_closed_it_is_quiet_and_may_be_asked_again(watched: Watched) -> None:
    assert await watched.due() == 0
    await watched.watch.close()
    await watched.watch.close()
    await eventually("its connection is gone", lambda: query(watched.url, CONNECTED) == [])
    heard = len(watched.heard)
    await asyncio.sleep(0.1)
    assert len(watched.heard) == heard
    assert await watched.due() == 0


async def test_it_is_lent_between_questions_and_hears_meanwhile(watched: Watched) -> None:
    async with watched.watch.lend() as conn:
        assert conn is None, "nobody has asked yet, so it is not connected"
    assert await watched.due() == 0
    async with watched.watch.lend() as conn:
        assert conn is not None
        query(watched.url, "NOTIFY news, 'a'")
        await conn.execute("SELECT 1")
        async with watched.watch.lend() as second:
            assert second is None, "it is lent already"
    await eventually("it heard", lambda: watched.heard == [None, "a"])
    query(watched.url, "NOTIFY news, 'b'")
    await eventually("it hears as before", lambda: watched.heard == [None, "a", "b"])
    assert len(query(watched.url, CONNECTED)) == 1


async def test_while_a_question_is_under_way_it_is_not_lent(watched: Watched, locked: psycopg.Connection) -> None:
    assert await watched.watch.ask("tasks/pending_queues") == []
    asked = asyncio.create_task(watched.due())
    await eventually("it waits for the lock", lambda: bool(query(watched.url, WAITS)))
    async with watched.watch.lend() as conn:
        assert conn is None
    locked.rollback()
    assert await asked == 0


async def test_what_a_borrower_leaves_behind_harms_no_question(watched: Watched) -> None:
    """After a rollback the driver forgets every statement that is prepared; an open transaction is dropped."""
    query(watched.url, EVENTS)
    assert await watched.due() == 3
    async with watched.watch.lend() as conn:
        assert conn is not None
        for _ in range(10):
            await conn.execute("SELECT 2")
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with conn.transaction():
                await conn.execute("SELECT 1 / 0")
    assert await watched.due() == 3
    async with watched.watch.lend() as conn:
        assert conn is not None
        await conn.execute("BEGIN")
    assert await watched.due() == 3
    assert len(query(watched.url, CONNECTED)) == 1
