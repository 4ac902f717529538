"""What is different behind PgBouncer in transaction mode: nothing may be left in a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from relay.adapters.postgres.function_connections import FunctionConnection
from relay.adapters.postgres.inspection import place
from relay.adapters.postgres.pipeline import fetch
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.transactions import HandlerTransactions, Settlement
from relay.ops.doctor.databases import same_place
from relay.settings.urls import with_search_path
from tests.pooler import MISSING, PROGRAM, Pooler, pooled

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(PROGRAM is None, reason=MISSING)]

LIMIT = timedelta(seconds=7)
SHOW = "SELECT current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout')"


@pytest.fixture
def pooler(database_url: str, tmp_path: Path) -> Iterator[Pooler]:
    with pooled(tmp_path, database_url, size=2) as pooler:
        yield pooler


@pytest.fixture
async def transactions(pooler: Pooler, database_url: str) -> AsyncIterator[HandlerTransactions]:
    made = HandlerTransactions(pooler.url(database_url), limit=LIMIT, application_name="test", pooler=True)
    yield made
    await made.close()


async def test_statements_run_whatever_session_they_get(pooler: Pooler, database_url: str) -> None:
    """Twenty callers on two sessions. What one of them prepared by name the other session would not know."""
    async with Pool(pooler.url(database_url), max_size=20, application_name="test", pooler=True) as pool:

        async def ask() -> None:
            for _ in range(10):
                async with pool.connection() as conn:
                    await fetch(conn, ("session/limit", {"limit": "1000", "local": True}))
                    await conn.execute("SELECT %s::int", [1])

        await asyncio.gather(*(ask() for _ in range(20)))


@pytest.mark.parametrize("begin", [FunctionConnection.begin, FunctionConnection.begin_late])
async def test_limits_of_a_function_are_those_of_its_transaction_only(
    begin: object, transactions: HandlerTransactions, pooler: Pooler, database_url: str
) -> None:
    with transactions._connections.lending() as borrowed:
        begin(borrowed, LIMIT)  # type: ignore[operator]
        assert borrowed.driver.execute(SHOW).fetchone() == ("6s", "7s")
    await _nothing_is_left(pooler.url(database_url))


async def test_limits_of_a_coroutine_are_those_of_its_transaction_only(
    transactions: HandlerTransactions, pooler: Pooler, database_url: str
) -> None:
    async with transactions.share_async() as shared, shared.step() as step:
        assert (await step.session.execute(text(SHOW))).one() == ("6s", "7s")
    await _nothing_is_left(pooler.url(database_url))


async def _nothing_is_left(url: str) -> None:
    """No session of the pooler is as the function had it."""
    pool = Pool(url, max_size=2, application_name="other", pooler=True)
    async with pool, pool.connection() as one, pool.connection() as other:
        for conn in (one, other):
            await conn.execute("BEGIN")
        for conn in (one, other):
            assert await (await conn.execute(SHOW)).fetchone() == ("0", "0")


def test_a_transaction_that_outlives_its_functions_is_ended_by_its_real_process(
    pooler: Pooler, database_url: str
) -> None:
    transactions = HandlerTransactions(pooler.url(database_url), limit=LIMIT, application_name="test", pooler=True)

    def outlive() -> None:
        with transactions.share() as shared:
            assert shared._cursor.execute("SELECT pg_backend_pid()").fetchall() == [(shared.pid,)]
            transactions.end_session(shared.pid)
            shared._cursor.execute("SELECT pg_sleep(60)")

    with pytest.raises(psycopg.OperationalError):
        outlive()


async def test_a_pooler_that_leads_elsewhere_is_found(pooler: Pooler, database_url: str, tmp_path: Path) -> None:
    """As one does that does not know the schema of its context; it learns that by a query of its own."""
    through, direct = await place(pooler.url(database_url)), await place(database_url)
    assert [*same_place("postgresql sea", through, direct)] == []
    with psycopg.connect(database_url) as owner:
        owner.execute("CREATE SCHEMA sea CREATE TABLE outbox_events (id int)")
    direct = await place(with_search_path(database_url, "sea"))
    [finding] = same_place("postgresql sea", through, direct)
    assert finding.code == "POOLER_DIFFERS"
    with pooled(tmp_path / "knows", database_url, size=1, query="SET search_path = sea") as other:
        assert await place(other.url(database_url)) == direct


#: What a session remembers and others would meet, with what looks for it.
LEFT = [
    ("SELECT pg_advisory_lock(7)", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"),
    ("LISTEN mine", "SELECT count(*) FROM pg_listening_channels()"),
    ("CREATE TEMP TABLE mine (n INT)", "SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()"),
    ("DECLARE mine CURSOR WITH HOLD FOR SELECT 1", "SELECT count(*) FROM pg_cursors WHERE is_holdable"),
]
ENDED = Settlement("session/process", {})


@pytest.mark.parametrize("fails", [False, True])
async def test_nothing_of_a_function_is_left_in_a_session_of_the_pooler(
    tmp_path: Path, database_url: str, fails: bool
) -> None:
    with pooled(tmp_path, database_url, size=1) as pooler:
        url = pooler.url(database_url)
        transactions = HandlerTransactions(url, limit=LIMIT, application_name="test", pooler=True)

        def nothing_is_left(found: str) -> None:
            with psycopg.connect(url, prepare_threshold=None) as other:
                assert other.execute(found).fetchone() == (0,)

        for command, found in LEFT:
            with suppress(ZeroDivisionError), transactions.for_row().settle(ENDED) as transaction:
                transaction.connection.execute(command)
                assert not fails or 1 / 0
            nothing_is_left(found)
            with suppress(ZeroDivisionError), transactions.share() as shared, shared.step() as transaction:
                transaction.connection.execute(command)
                assert not fails or 1 / 0
            nothing_is_left(found)
            with suppress(ZeroDivisionError):
                async with transactions.settle_async(ENDED) as coroutine:
                    await coroutine.connection.execute(command)
                    assert not fails or 1 / 0
            nothing_is_left(found)
        assert transactions.idle == 2
        await transactions.close()
