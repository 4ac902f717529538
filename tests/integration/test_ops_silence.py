"""A database that hangs: what operators are told, and that they are told at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay.adapters.postgres.migrations import upgrade
from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from relay.ops.api.app import ContextPools
from tests.integration.ops_api import Api, configured, serving
from tests.integration.publishing import query

pytestmark = pytest.mark.anyio

EVENTS = "/contexts/sea/events"
DEAD = """INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, dead_at, publish_error)
    VALUES ('vibe', 'v1', 'vibe_created', '{}', now(), 'time-out: no answer') RETURNING id"""


async def silent(api: Api, method: str, path: str, **how: Any) -> str:
    found = await (api.get(path, 503, **how) if method == "GET" else api.post(path, how, 503))
    assert found["error"]["code"] == "DATABASE_UNREACHABLE"
    return str(found["error"]["message"])


async def test_a_question_and_a_deed_end_though_the_database_hangs(
    own_postgres: PostgresServer, nats_server: NatsServer, valkey: ValkeyServer
) -> None:
    """The server's own limit does not help: it keeps no time while it hangs."""
    url = own_postgres.create_database("sea")
    upgrade(url)
    [row] = query(url, DEAD)
    pools = ContextPools(4)
    async with serving(configured(url, nats_server.url, valkey.url), pools) as api:
        # Both have a connection from before.
        await asyncio.gather(api.get(EVENTS), api.get("/contexts/sea/dead-letters"))
        own_postgres.pause()
        usual, pools.silence = pools.silence, 0.5
        try:
            async with asyncio.timeout(120):
                told = await asyncio.gather(
                    silent(api, "GET", f"{EVENTS}/{row['id']}"),
                    silent(api, "POST", f"{EVENTS}/retry", ids=[str(row["id"])]),
                )
        finally:
            pools.silence = usual
            own_postgres.resume()
        assert [text.split()[-2:] for text in told] == [["0.5", "s"]] * 2
        assert (await api.post(f"{EVENTS}/retry", {"ids": [str(row["id"])]}))["count"] == 1
