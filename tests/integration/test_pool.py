"""The pool of connections after the server has closed them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import psycopg
import pytest

from relay.adapters.postgres.pool import connection, create_pool
from tests.integration.publishing import eventually

pytestmark = pytest.mark.anyio

NAME = "idle-and-closed"
CONNECTIONS = 4


async def test_connections_that_the_server_closed_are_not_lent(
    database_url: str, administrator: psycopg.Connection
) -> None:
    pool = create_pool(database_url, max_size=CONNECTIONS, application_name=NAME)
    await pool.open()
    try:
        async with AsyncExitStack() as all_at_once:
            for _ in range(CONNECTIONS):
                await all_at_once.enter_async_context(connection(pool))
        assert pool.get_stats()["pool_available"] == CONNECTIONS
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
        assert len(administrator.execute(ended, [NAME]).fetchall()) == CONNECTIONS
        left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        await eventually(
            "the backends end", lambda: administrator.execute(left, [NAME]).fetchone() == (0,), seconds=30
        )
        async with connection(pool) as conn, asyncio.timeout(30):
            assert await (await conn.execute("SELECT 1")).fetchone() == (1,)
    finally:
        await pool.close()
