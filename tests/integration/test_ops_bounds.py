"""Very many rows and very long values everywhere: each answer of `relay ops` has a bound in bytes and time."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import httpx2
import psycopg
import pytest
from redis import Redis

from relay import jobs
from relay.devstack import NatsServer, ValkeyServer
from relay.devstack.ports import free_port
from tests.integration.ops_rows import Rows, real_rows
from tests.unit.ops_support import TOKENS
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio

#: Into a table, for each `i`, these values of columns.
FILL = {
    "parked_keys (subscription, order_key, message_id, reason)": "'billing', i || long, gen_random_uuid(), long",
    "inbox_messages (message_id, subject, stream, stream_seq, subscription, attempts, last_error)": (
        "gen_random_uuid(), long, 'UP', i, i || long, 1, long"
    ),
    "dead_letters (message_id, subscription, subject, class, reason)": (
        "gen_random_uuid(), i || long, long, 'poison', long"
    ),
    "task_outbox (id, type, payload, queue)": "gen_random_uuid(), long, '{}', i || long",
    "scheduled_jobs (name, schedule, error)": "i || long, long, long",
    "handler_circuits (subscription, opened_at, since, reason)": "i || long, now(), now(), long",
    "archive_batches (kind, number, rows, size, sha256, first_id, first_at, last_id, last_at)": (
        "'outbox', i + 1000, 1, 1, long, gen_random_uuid(), now(), gen_random_uuid(), now()"
    ),
    "audit_log (actor, action, ids, note)": "long, long, ids, long",
}
MANY, LONG = 2_500, 2_500
AUDITED = """INSERT INTO audit_log (actor, action, ids)
    SELECT 'ann', 'outbox.retry', ARRAY[id::text]
    FROM (SELECT id FROM outbox_events ORDER BY seq LIMIT 1) AS first, generate_series(1, %(count)s)"""


@pytest.fixture
async def rows(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer, tmp_path: Path
) -> AsyncIterator[Rows]:
    namespace = f"test-{uuid4().hex}"
    async with real_rows(database_url, nats_server.url, valkey.url, namespace, tmp_path) as rows:
        with psycopg.connect(database_url) as connection:
            for table, values in FILL.items():
                connection.execute(
                    f"INSERT INTO {table} SELECT {values} FROM generate_series(1, {MANY}) AS i,"
                    f" (SELECT repeat('x', {LONG}), array_fill(repeat('x', {LONG}), ARRAY[100])) AS it (long, ids)"
                )
            connection.execute(AUDITED, {"count": MANY})
        crowd(Redis.from_url(valkey.url), namespace)
        yield rows


def crowd(redis: Redis[bytes], namespace: str) -> None:
    """What anybody may put beside the members and the jobs of a fleet."""
    members, queue = f"{namespace}:members", f"{namespace}:{jobs.HANDLE_QUEUE}"
    [text], now = redis.hvals(members), time.time() * 1000
    for count, size in ((5_000, 1_000), (30, 1_000_000)):
        many = {f"{size}-{i}": json.dumps({**json.loads(text), "host": "h" * size}) for i in range(count)}
        redis.hset(members, mapping=many)
        redis.zadd(f"{members}:beats", dict.fromkeys(many, now))
    large = json.dumps({**json.loads(redis.hvals(f"{queue}.XQ.msgs")[0]), "args": ["x" * 1_000_000]})
    for i in range(30):
        redis.hset(f"{queue}.XQ.msgs", f"large{i}", large)
        redis.zadd(f"{queue}.XQ", {f"large{i}": now + i})
        redis.hset(f"{queue}.DQ.msgs", f"large{i}", large)


@asynccontextmanager
async def running(rows: Rows, folder: Path) -> AsyncIterator[tuple[httpx2.AsyncClient, int]]:
    """`relay ops` as a process of its own, for somebody who may do everything; and its number."""
    port, relay = free_port(), Path(sys.executable).with_name("relay")
    (folder / "relay.toml").write_text("\n".join(f"{key} = {toml(it)}" for key, it in rows.document.items()))
    process = await asyncio.create_subprocess_exec(relay, "ops", "--port", str(port), cwd=folder, stdout=DEVNULL)
    client = httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        headers={"Authorization": f"Bearer {TOKENS['operator']}"},
        timeout=DEADLINE_S,
    )

    async def answers() -> bool:
        with suppress(httpx2.TransportError):
            return (await client.get("/healthz")).status_code == 200
        return False

    async with client:
        try:
            await eventually("it answers", answers)
            yield client, process.pid
        finally:
            process.terminate()
            await process.wait()


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {toml(it)}' for key, it in value.items())}}}"
    return json.dumps(value)


async def test_each_answer_has_a_bound(rows: Rows, tmp_path: Path) -> None:
    """Of a process of its own: it stays small, and answers others meanwhile."""
    async with running(rows, tmp_path) as (client, process):
        found = {path: await measured(client, path) for path in paths(rows)}
        assert {path: it for path, it in found.items() if it[0] != 200 or it[1] > 5_000_000 or it[2] > 30} == {}
        for name in ("parked", "schedule", "archive"):
            await follow(client, f"/api/v1/contexts/{rows.context}/{name}")
        # All at once: some may be told to ask again.
        asking = [asyncio.ensure_future(measured(client, path)) for path in paths(rows)]
        waited = [await measured(client, "/healthz") for _ in range(50)]
        assert {status for status, _, _ in await asyncio.gather(*asking)} <= {200, 503}
        assert {status for status, _, _ in waited} == {200}
        assert max(seconds for _, _, seconds in waited) < 15
        assert peak_mb(process) < 500


def peak_mb(process: int) -> int:
    """The most memory that a process has had."""
    [line] = [it for it in Path(f"/proc/{process}/status").read_text().splitlines() if it.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


async def follow(client: httpx2.AsyncClient, path: str) -> None:
    """A part of a list says where the next one is, and no entry is in both."""
    first = await client.get(path, params={"limit": 5})
    assert first.headers["Link"] == '<?limit=5&offset=5>; rel="next"'
    second = await client.get(path, params={"limit": 5, "offset": 5})
    one, two = (it["jobs"] if isinstance(it, dict) else it for it in (first.json(), second.json()))
    assert len(one) == len(two) == 5
    assert not [it for it in one if it in two]
    last = await client.get(path, params={"offset": MANY})
    assert "Link" not in last.headers


def paths(rows: Rows) -> list[str]:
    """Every question of the API, and every page of the console that lists something."""
    asked = []
    for (method, path), queries in rows.requests().items():
        if method == "GET" and not path.endswith("/payload"):
            base, most = path.format(**rows.names(path)), 100 if path.endswith("/runs") else 500
            asked += [f"{base}?{urlencode(it | ({'limit': most} if 'limit' in it else {}))}" for it in queries]
    pages = ["", "/doctor", "/fleet", "/streams", "/queues", f"/queues/jobs?queue={jobs.HANDLE_QUEUE}&args=true"]
    kinds = ("events", "inbox", "dead-letters", "tasks", "parked", "schedule", "audit", "archive")
    return [*asked, *pages, *(f"/contexts/{rows.context}/{kind}" for kind in kinds)]


async def measured(client: httpx2.AsyncClient, path: str) -> tuple[int, int, float]:
    """The status, the size, and the seconds that an answer took."""
    began = time.monotonic()
    answer = await client.get(path or "/")
    return answer.status_code, len(answer.content), round(time.monotonic() - began, 1)
