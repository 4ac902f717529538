"""The lead of a context on a real database: one at a time, taken over in time, fenced, given up at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.schedule import PostgresLease
from relay.domain.errors import DatabaseUnreachable
from relay.domain.schedule import Due, RunState
from scheduler.leader import Lease
from tests.integration.publishing import query

pytestmark = pytest.mark.anyio

TTL = timedelta(seconds=30)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EXPIRE = "UPDATE scheduler_lease SET expires_at = now() - interval '1 ms'"


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    pool = Pool(database_url, max_size=10, application_name="test")
    await pool.open()
    yield pool
    await pool.close()


def store(pool: Pool, who: str = "host:1") -> PostgresLease:
    return PostgresLease(pool.connection, uuid4(), who)


async def test_one_leads_and_the_other_knows_for_how_long(pool: Pool, database_url: str) -> None:
    first, second = Lease(store(pool), TTL), Lease(store(pool), TTL)
    assert (await first.take()).term == 1
    assert first.held
    refused = await second.take()
    assert refused.term is None
    assert 0 < refused.remaining <= 30
    assert not second.held
    before = query(database_url, "SELECT expires_at FROM scheduler_lease")
    await second.take()
    assert query(database_url, "SELECT expires_at FROM scheduler_lease") == before
    assert (await first.take()).term == 1
    assert query(database_url, "SELECT expires_at FROM scheduler_lease") != before


async def test_of_many_that_ask_at_once_one_gets_it(pool: Pool) -> None:
    leads = await asyncio.gather(*(store(pool).take(TTL) for _ in range(10)))
    assert [lead.term for lead in leads if lead.term is not None] == [1]


async def test_when_its_time_is_over_another_takes_it_and_the_term_counts(pool: Pool, database_url: str) -> None:
    first, second = Lease(store(pool, "a:1"), TTL), Lease(store(pool, "b:2"), TTL)
    await first.take()
    query(database_url, EXPIRE)
    assert (await second.take()).term == 2
    assert query(database_url, "SELECT who FROM scheduler_lease") == [{"who": "b:2"}]
    assert (await first.take()).term is None
    assert not first.held


class Later:
    """A clock that stands beside the machine's, and may be put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead

    def pass_the_time_of_a_lease(self) -> None:
        self.ahead += TTL.total_seconds()


@pytest.fixture
def later() -> Later:
    return Later()


async def test_a_process_knows_by_itself_when_its_time_is_over(pool: Pool, later: Later) -> None:
    lease = Lease(store(pool), TTL, monotonic=later)
    await lease.take()
    assert lease.held
    later.pass_the_time_of_a_lease()
    assert not lease.held


async def test_an_attempt_that_fails_does_not_prolong_the_lead(pool: Pool, later: Later) -> None:
    lease = Lease(store(pool), TTL, monotonic=later)
    await lease.take()
    until = lease._until
    await pool.close()
    with pytest.raises(DatabaseUnreachable):
        await lease.take()
    assert lease._until == until
    later.pass_the_time_of_a_lease()
    assert not lease.held


async def test_the_next_attempt_comes_well_before_the_end_and_soon_after_anothers(pool: Pool) -> None:
    lease, other = Lease(store(pool), TTL), Lease(store(pool), timedelta(seconds=1))
    await other.take()
    await lease.take()
    assert lease.pause <= 1.1
    assert other.pause <= 0.34


async def test_what_is_given_up_is_free_at_once(pool: Pool) -> None:
    first, second = Lease(store(pool), TTL), Lease(store(pool), TTL)
    await first.take()
    await second.release()
    assert (await second.take()).term is None
    await first.release()
    assert not first.held
    assert (await second.take()).term == 2


# --- runs are opened by the leader only, each once ---


async def test_a_run_is_opened_once_and_never_behind_a_later_one(pool: Pool, database_url: str) -> None:
    leader = store(pool)
    await leader.take(TTL)
    opened = await asyncio.gather(*(leader.open("nightly", Due(NOON), uuid4()) for _ in range(8)))
    assert [state for state in opened if state] == [RunState.WAITING]
    assert await leader.open("nightly", Due(NOON - timedelta(hours=1)), uuid4()) is None
    assert await leader.open("hourly", Due(NOON), uuid4()) is RunState.WAITING
    assert len(query(database_url, "SELECT 1 FROM scheduled_runs")) == 2


async def test_a_run_that_waits_stands_for_those_after_it(pool: Pool) -> None:
    leader = store(pool)
    await leader.take(TTL)
    await leader.open("nightly", Due(NOON), uuid4())
    assert await leader.open("nightly", Due(NOON + timedelta(days=1)), uuid4()) is RunState.SKIPPED
    assert await leader.open("other", Due(NOON, missed=True), uuid4()) is RunState.MISSED


async def test_who_leads_no_more_opens_nothing(pool: Pool, database_url: str) -> None:
    paused, successor = store(pool), store(pool)
    await paused.take(TTL)
    query(database_url, EXPIRE)
    assert await paused.open("nightly", Due(NOON), uuid4()) is None
    await successor.take(TTL)
    assert await paused.open("nightly", Due(NOON), uuid4()) is None
    assert await successor.open("nightly", Due(NOON), uuid4()) is RunState.WAITING
