"""The stream of events: what happens is told to all who listen, and who was away goes on where it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import psycopg
import pytest
import uvicorn

from relay.devstack import NatsServer, ValkeyServer
from relay.devstack.ports import free_port
from relay.ops.api.app import create_app
from relay.ops.api.live import LiveLimits
from tests.integration.ops_api import configured
from tests.unit.ops_support import TOKENS, USERS
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
HEAD = {"Authorization": f"Bearer {TOKENS['reader']}"}
LIMITS = LiveLimits(every_s=0.05, patience_s=60, beat_s=0.2, kept=5, of_one=2)


@pytest.fixture
async def client(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer
) -> AsyncIterator[httpx2.AsyncClient]:
    settings = configured(database_url, nats_server.url, valkey.url, ops={"users": USERS})
    port = free_port()
    config = uvicorn.Config(
        create_app(settings, live=LIMITS), port=port, log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())

    async def started() -> bool:
        return server.started

    await eventually("it serves", started)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=HEAD, timeout=60) as client:
        yield client
    server.should_exit = True
    await serving


@asynccontextmanager
async def listening(client: httpx2.AsyncClient, last: str | None = None) -> AsyncIterator[AsyncIterator[Any]]:
    """The events as (id, name, data)."""
    more = {"Last-Event-ID": last} if last else {}
    async with client.stream("GET", "/api/v1/stream", headers=more) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer)


async def events(answer: httpx2.Response) -> AsyncIterator[tuple[str, str, Any]]:
    found: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            found[name] = value
        else:
            if "event" in found:
                yield found.get("id", ""), found["event"], json.loads(found["data"])
            found = {}


def deed(database_url: str, note: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO audit_log (at, actor, action, ids, note) VALUES (now(), 'ann', 'dlq.discard', '{1}', %s)",
            [note],
        )


async def until(found: AsyncIterator[Any], name: str, **wanted: Any) -> tuple[str, Any]:
    async for id, event, data in found:
        if event == name and wanted.items() <= data.items():
            return id, data
    raise AssertionError(f"the stream ended without {name}")


async def test_deeds_and_counters_are_told_and_who_was_away_goes_on(
    client: httpx2.AsyncClient, database_url: str
) -> None:
    async with listening(client) as first, listening(client) as second:
        # A context that does not answer is named, and stops no other.
        _, quiet = await until(first, "counters", context="quiet")
        assert quiet["error"]["code"] == "DATABASE_UNREACHABLE"
        await until(second, "counters", context="sea")
        deed(database_url, "one")
        last, told = await until(first, "deed", note="one")
        assert (told["context"], told["actor"], told["action"]) == ("sea", "ann", "dlq.discard")
        assert await until(second, "deed", note="one") == (last, told)
        deed(database_url, "two")
        await until(second, "deed", note="two")
    async with listening(client, last) as third:
        _, told = await until(third, "deed")
        assert told["note"] == "two"
    async with listening(client, "other-1") as stranger:
        assert (await until(stranger, "reset"))[1] == {}


async def test_who_was_away_for_too_long_is_told_so(client: httpx2.AsyncClient, database_url: str) -> None:
    async with listening(client) as first:
        await until(first, "counters", context="sea")
        deed(database_url, "0")
        last, _ = await until(first, "deed", note="0")
        for number in range(1, LIMITS.kept + 3):
            deed(database_url, str(number))
            await until(first, "deed", note=str(number))
        async with listening(client, last) as late:
            await until(late, "reset")


async def test_one_user_listens_only_so_often_and_without_a_token_nobody(client: httpx2.AsyncClient) -> None:
    async with listening(client), listening(client):
        answer = await client.get("/api/v1/stream")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "BUSY")
        other = {"Authorization": f"Bearer {TOKENS['auditor']}"}
        async with client.stream("GET", "/api/v1/stream", headers=other) as answer:
            assert answer.status_code == 200
        assert (await client.head("/api/v1/stream", headers=other)).status_code == 200
        assert (await client.get("/api/v1/stream", headers={"Authorization": "none"})).status_code == 401
        assert (await client.get("/api/v1/contexts")).status_code == 200

    async def free() -> bool:
        return (await client.head("/api/v1/stream")).status_code == 200

    await eventually("the places of those who went away are free", free)
