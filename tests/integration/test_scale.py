"""GET /scale of a scheduler that does not lead, on real servers: numbers, errors, and how often it reads."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from relay.bootstrap import Application
from relay.devstack import NatsServer, PostgresServer
from relay.devstack.ports import free_port
from relay.domain.facts import Fact, LagSampled
from relay.monitoring import scheduler_metrics
from relay.settings import load_settings
from scheduler.samples import Samples
from tests.integration.consuming import Subscription, subscribed
from tests.integration.crowded import events, messages, tasks
from tests.pages import code
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

CONFIG = """
nats_url = "{nats}"
[metrics]
scheduler = "127.0.0.1:{port}"
[contexts.sea]
database_url = "{url}"
[contexts.sea.subscriptions.inward]
stream = "{stream}"
durable = "down"
filter_subject = "up.event.>"
handler = "http://127.0.0.1:9/handle"
"""


class Scheduler:
    """The part of a scheduler that answers at its port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.facts: list[Fact] = []

    def _get(self, query: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{query}", timeout=20) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read()

    async def get(self, query: str) -> tuple[int, Any]:
        status, body = await asyncio.to_thread(self._get, query)
        return status, json.loads(body)

    async def code(self, query: str) -> tuple[int, str]:
        status, body = await self.get(query)
        return status, body.get("error", {}).get("code", "")

    def readings(self) -> int:
        return sum(isinstance(fact, LagSampled) for fact in self.facts)


@asynccontextmanager
async def scheduling(tmp_path: Path, url: str, nats: str, stream: str) -> AsyncIterator[Scheduler]:
    port = free_port()
    path = tmp_path / "relay.toml"
    path.write_text(CONFIG.format(nats=nats, url=url, port=port, stream=stream))
    application, found = Application(load_settings(path, {}), role="scheduler"), Scheduler(port)
    await application.start()
    for listener in (found.facts.append, *scheduler_metrics(application.settings, {}, Samples(application).ask)):
        application.facts.listen(listener)
    try:
        await eventually("the port answers", lambda: asyncio.to_thread(_answers, port))
        yield found
    finally:
        await application.stop()


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).close()
    except OSError:
        return False
    return True


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


@pytest.fixture
async def scheduler(
    tmp_path: Path, database_url: str, nats_server: NatsServer, sub: Subscription
) -> AsyncIterator[Scheduler]:
    async with scheduling(tmp_path, database_url, nats_server.url, sub.stream) as found:
        yield found


@pytest.fixture
def work(database_url: str) -> None:
    """Seven events, three tasks and five messages are due."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        events(conn, 7, "'key' || n")
        tasks(conn, 3)
        messages(conn, 1, 5, "inward", enqueued_at="now()")


@pytest.mark.usefixtures("work")
async def test_it_tells_what_is_due_in_tables_and_stream(scheduler: Scheduler, sub: Subscription) -> None:
    for _ in range(4):
        await sub.js.publish(sub.subject, b"{}")
    status, body = await scheduler.get("scale?context=sea&subscription=inward")
    assert status == 200
    assert body.keys() == json.loads(code("docs/reference/scale.md", "json", 1)).keys()
    assert body["oldest_seconds"] >= 0
    del body["oldest_seconds"]
    assert body == {"value": 9, "messages": 9, "in_stream": 4, "unacknowledged": 0, "in_inbox": 5}
    status, body = await scheduler.get("scale")
    assert (status, body["value"], body["events"], body["tasks"], body["messages"]) == (200, 19, 7, 3, 9)


@pytest.mark.usefixtures("work")
async def test_many_scrapers_are_one_reading(scheduler: Scheduler) -> None:
    queries = ["scale", "scale?context=sea", "scale?context=sea&subscription=inward"] * 8
    answers = await asyncio.gather(*(scheduler.get(query) for query in queries))
    assert {status for status, _ in answers} == {200}
    assert scheduler.readings() == 1


async def test_a_missing_consumer_is_an_error(scheduler: Scheduler, sub: Subscription) -> None:
    await sub.js.delete_consumer(sub.stream, "down")
    _, shown = await scheduler.get("scale?context=sea")
    assert shown["error"].keys() == json.loads(code("docs/reference/scale.md", "json", 2))["error"].keys()
    for query in ("scale?context=sea&subscription=inward", "scale?context=sea", "scale"):
        assert await scheduler.code(query) == (503, "CONSUMER_MISSING")
    assert (await scheduler.code("scale?context=sky"))[0] == 404


async def test_a_server_that_is_away_is_an_error_and_its_return_is_noticed(
    tmp_path: Path, own_postgres: PostgresServer, nats_server: NatsServer, sub: Subscription
) -> None:
    url = own_postgres.create_database("sea")
    async with scheduling(tmp_path, url, nats_server.url, sub.stream) as scheduler:

        def told(code: str) -> Callable[[], Awaitable[bool]]:
            async def look() -> bool:
                return await scheduler.code("scale") == (503, code)

            return look

        await eventually("tables are missing", told("SCHEMA_MISSING"))
        own_postgres.stop("immediate")
        await eventually("the outage is told", told("DATABASE_UNREACHABLE"))
        own_postgres.start()
        await eventually("the server is back", told("SCHEMA_MISSING"))


async def test_nats_that_is_away_is_an_error(tmp_path: Path, database_url: str, sub: Subscription) -> None:
    async with scheduling(tmp_path, database_url, "nats://127.0.0.1:9", sub.stream) as scheduler:

        async def away() -> bool:
            return await scheduler.code("scale?context=sea") == (503, "BROKER_UNREACHABLE")

        await eventually("the outage is told", away)


async def test_what_the_chart_asks_is_answered_with_a_number(
    tmp_path: Path, database_url: str, nats_server: NatsServer, sub: Subscription
) -> None:
    pytest.importorskip("helm_python", reason="Helm's library has no wheel for this machine")
    from tests.repository.chart_support import of_kind, render

    config = CONFIG.format(nats="nats://nats", url="postgresql://db/sea", port=9464, stream=sub.stream)
    triggers = []
    for per in ("subscription", "fleet"):
        values = json.dumps({"config": config, "worker": {"autoscaling": {"per": per}}})
        [scaled] = of_kind(render(values), "ScaledObject").values()
        triggers += scaled["spec"]["triggers"]
    async with scheduling(tmp_path, database_url, nats_server.url, sub.stream) as scheduler:
        for trigger in triggers:
            asked = trigger["metadata"]
            url = urlsplit(asked["url"])
            assert url.port == 9464
            status, body = await scheduler.get(f"{url.path.removeprefix('/')}?{url.query}".removesuffix("?"))
            assert (status, body[asked["valueLocation"]]) == (200, 0)
    assert len(triggers) == 3 + 3
