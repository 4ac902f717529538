"""The pools of connections: what they share, what they lend, and what they close."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from contextlib import AsyncExitStack
from datetime import timedelta

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from relay.adapters.postgres.budget import Budget, Budgets
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.transactions import HandlerTransactions
from relay.domain.errors import ConnectionsBusy, DatabaseUnreachable
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

NAME = "idle-and-closed"
CONNECTIONS = 4
HERE = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"


async def test_connections_that_the_server_closed_are_not_lent(
    database_url: str, administrator: psycopg.Connection
) -> None:
    pool = Pool(database_url, max_size=CONNECTIONS, application_name=NAME)
    await pool.open()
    try:
        async with AsyncExitStack() as all_at_once:
            for _ in range(CONNECTIONS):
                await all_at_once.enter_async_context(pool.connection())
        assert len(administrator.execute(HERE, [NAME]).fetchall()) == CONNECTIONS
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
        assert len(administrator.execute(ended, [NAME]).fetchall()) == CONNECTIONS
        left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        await eventually(
            "the backends end", lambda: administrator.execute(left, [NAME]).fetchone() == (0,), seconds=30
        )
        async with pool.connection() as conn, asyncio.timeout(30):
            assert await (await conn.execute("SELECT 1")).fetchone() == (1,)
    finally:
        await pool.close()


async def test_callers_that_find_none_queue_and_then_are_told(database_url: str) -> None:
    """Pools of one process to one server share its connections, whatever the database."""
    budget = Budget(4)
    pools = [Pool(database_url, max_size=8, application_name=NAME, budget=budget) for _ in range(3)]
    async with pools[0], pools[1], pools[2], AsyncExitStack() as held:
        for _ in range(2):
            await held.enter_async_context(pools[0].connection())
        await held.enter_async_context(pools[1].connection())
        async with pools[1].connection() as last:
            waits = asyncio.create_task(once(pools[1]))
            also = asyncio.create_task(once(pools[0]))
            await eventually("both wait", lambda: len(budget._waiting) == 2)
            budget.wait = 0.01
            with pytest.raises(ConnectionsBusy, match="max_connections"):
                await once(pools[2])
            pid = last.info.backend_pid
        assert await waits == pid, "the connection goes from hand to hand"
        assert await also != pid, "that of another database is closed, and a new one takes its place"
        assert budget.open == 4


async def test_a_pool_lends_no_more_at_a_time_than_it_may(database_url: str) -> None:
    made = Pool(database_url, max_size=1, application_name=NAME, budget=Budget(wait=0.01))
    async with made as pool, pool.connection() as held:
        pool.timeout = 0.01
        with pytest.raises(ConnectionsBusy, match=r"\b1\b"):
            await once(pool)
        assert held.info.backend_pid
    with pytest.raises(DatabaseUnreachable):
        await once(Pool(database_url + "_none", max_size=1, application_name=NAME))


async def test_what_a_user_leaves_behind_harms_nobody(database_url: str) -> None:
    """An error rolls back, the end commits; one that is cancelled in the middle of a statement is closed."""
    async with Pool(database_url, max_size=1, application_name=NAME) as pool:
        async with pool.connection() as conn:
            await conn.execute("CREATE TABLE left_behind (id int)")
            await conn.execute("BEGIN")
            await conn.execute("INSERT INTO left_behind VALUES (1)")
        with pytest.raises(psycopg.errors.DivisionByZero):
            await once(pool, "BEGIN; INSERT INTO left_behind VALUES (2); SELECT 1 / 0")
        asleep = asyncio.create_task(once(pool, "SELECT pg_sleep(60)"))
        sleeping = "SELECT FROM pg_stat_activity WHERE application_name = %s AND state = 'active'"
        with psycopg.connect(database_url, autocommit=True) as other:
            await eventually("it sleeps", lambda: other.execute(sleeping, [NAME]).fetchone() is not None)
            asleep.cancel()
            await asyncio.gather(asleep, return_exceptions=True)
        async with pool.connection() as conn:
            assert await (await conn.execute("SELECT id FROM left_behind")).fetchall() == [(1,)]


async def test_connections_that_nobody_uses_are_closed_after_a_while(
    database_url: str, administrator: psycopg.Connection
) -> None:
    budget = Budget(idle=0.1)
    async with Pool(database_url, max_size=2, application_name=NAME, budget=budget) as pool:
        assert administrator.execute(HERE, [NAME]).fetchall() == [], "nobody has asked for one"
        await once(pool)
        await eventually("it is closed", lambda: administrator.execute(HERE, [NAME]).fetchall() == [])
        await once(pool)


async def test_a_connection_that_breaks_while_it_is_lent_is_replaced(database_url: str) -> None:
    budget = Budget(4)
    async with Pool(database_url, max_size=1, application_name=NAME, budget=budget) as pool:
        first = await once(pool)
        with pytest.raises(DatabaseUnreachable):
            await once(pool, "SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(60)")
        assert budget.open == 0
        assert await once(pool) != first


async def test_fifty_pools_share_five_connections(database_url: str, administrator: psycopg.Connection) -> None:
    """With work in all of them at once: what nobody uses makes room, and nobody waits for ever."""
    budget = Budget(5)
    most = 0

    async def work(pool: Pool) -> None:
        nonlocal most
        for _ in range(3):
            async with pool.connection() as conn:
                await conn.execute("SELECT 1")
                most = max(most, len(administrator.execute(HERE, [NAME]).fetchall()))

    async with AsyncExitStack() as stack:
        pools = [Pool(database_url, max_size=4, application_name=NAME, budget=budget) for _ in range(50)]
        for pool in pools:
            await stack.enter_async_context(pool)
        await asyncio.gather(*map(work, pools))
        assert budget.open == 5
    assert budget.open == 0
    # A backend lives for a moment after its connection.
    assert most < 2 * 5


async def test_a_server_that_is_full_is_an_outage_until_it_has_room(
    database_url: str, administrator: psycopg.Connection
) -> None:
    """PostgreSQL refuses with 53300, whichever limit is reached: its own, a database's, a role's."""
    administrator.execute("CREATE ROLE crowded LOGIN PASSWORD 'crowded' CONNECTION LIMIT 1")
    try:
        url = make_conninfo(database_url, user="crowded", password="crowded")
        async with Pool(url, max_size=2, application_name=NAME) as pool:
            pool.timeout = 0.01
            async with pool.connection():
                with pytest.raises(DatabaseUnreachable, match="all its connections are in use"):
                    await once(pool)
            await once(pool)
    finally:
        administrator.execute("DROP ROLE crowded")


async def test_a_server_that_is_down_takes_nothing_from_another(database_url: str) -> None:
    """While all who may connect to the one that is away, the other is used as if nothing were."""
    budgets = Budgets(4)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        away = f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/none"
        gone, here = (
            Pool(it, max_size=8, application_name=NAME, budget=budgets.of(it)) for it in (away, database_url)
        )
        async with gone, here:
            trying = [asyncio.create_task(once(gone)) for _ in range(8)]
            await eventually("as many try as may", lambda: budgets.of(away).open == 3)
            await asyncio.gather(*(once(here) for _ in range(8)))
            assert budgets.of(away).open == 3, "nobody has given up yet"
            for it in trying:
                it.cancel()
            await asyncio.gather(*trying, return_exceptions=True)
            assert budgets.of(away).open == 0


async def test_a_database_that_hangs_leaves_room_to_others(database_url: str) -> None:
    """However small the budget is, and however many callers the database that hangs has."""
    budget = Budget(4)
    hangs, works = (Pool(database_url, max_size=16, application_name=NAME, budget=budget) for _ in range(2))
    async with hangs, works:
        stuck = [asyncio.create_task(once(hangs, "SELECT pg_sleep(3600)")) for _ in range(16)]
        await eventually("as many hang as may", lambda: budget.open == 3)
        await once(works)
        for it in stuck:
            it.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
    assert budget.open == 0


async def test_a_process_that_forks_keeps_its_connections(database_url: str) -> None:
    """A child that ends closes its copies of the sockets, and says nothing to the server."""
    async with Pool(database_url, max_size=1, application_name=NAME) as pool:
        pid = await once(pool)
        if (child := os.fork()) == 0:
            del pool
            gc.collect()
            os._exit(0)
        await asyncio.to_thread(os.waitpid, child, 0)
        assert await once(pool) == pid


@pytest.mark.parametrize("keep", [True, False])
async def test_a_function_that_writes_has_its_connection_before_its_attempt_counts(
    database_url: str, keep: bool
) -> None:
    """Else it could wait in vain, behind functions that take long, and spend an attempt on that."""
    transactions = HandlerTransactions(database_url, limit=timedelta(seconds=5), application_name=NAME)
    try:
        found = await asyncio.to_thread(transactions.claim, ("session/process", {}), keep=keep)
        assert found is not None
        assert transactions.idle == (0 if keep else 1)
        found[1].release()
        assert transactions.idle == 1
    finally:
        await transactions.close()


async def once(pool: Pool, sql: str = "SELECT 1") -> int:
    """Use a connection; returns the server's process of it."""
    async with pool.connection() as conn:
        await conn.execute(sql)
        return conn.info.backend_pid
