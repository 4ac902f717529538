"""One line finds the same rows in the console, over HTTP and at the command line, in all contexts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from relay.adapters.postgres.pool import connected
from relay.adapters.postgres.search_indexes import IndexChanges, arrange, found_by, name_of
from relay.cli import create_app
from relay.devstack import NatsServer, ValkeyServer
from relay.settings import Settings
from tests.integration.console_rows import event, letter, number, task
from tests.integration.ops_api import Api, configured, serving

pytestmark = pytest.mark.anyio
SEARCH = {"order_placed": ["customer_id", "order.id"]}


def fill(database_url: str) -> dict[str, str]:
    """An event of customer 47, and its dead letter; one of another customer; a task. Returns the ids of rows."""
    with psycopg.connect(database_url) as connection:
        ours = json.dumps({"customer_id": 47, "order": {"id": "o-1"}})
        event(connection, "ours", "published", payload=ours, chain=number("chain"))
        event(connection, "other", "published", payload=json.dumps({"customer_id": "x" * 5_000}))
        event(connection, "waiting", payload=json.dumps({"customer_id": 48}))
        event(connection, "shipped", "dead", type="parcel_shipped", error="refused: no route")
        letter(connection, "ours", subscription="from_upstream", reason="time-out: no answer")
        letter(connection, "late", subscription="from_upstream", type="order_late", age=90_000)
        task(connection, "mail", "failed", error="time-out: no answer", chain=number("chain"))
        letters: dict[Any, int] = dict(connection.execute("SELECT message_id, id FROM dead_letters").fetchall())
    found = {name: str(number(name)) for name in ("ours", "other", "waiting", "shipped", "late", "mail")}
    return found | {f"letter of {name}": str(letters[number(name)]) for name in ("ours", "late")}


@pytest.fixture
async def settings(database_url: str, nats_server: NatsServer, valkey: ValkeyServer) -> Settings:
    plain = configured(database_url, nats_server.url, valkey.url)
    sea = plain.contexts["sea"].model_copy(update={"search": SEARCH})
    return plain.model_copy(update={"contexts": {"sea": sea}})


@pytest.fixture
async def api(settings: Settings) -> AsyncIterator[Api]:
    async with serving(settings) as api:
        yield api


async def index(database_url: str, wanted: Any) -> IndexChanges:
    async with connected(database_url, "test") as source:
        return await arrange(source, wanted)


def lines(ids: dict[str, str]) -> dict[str, set[tuple[str, str]]]:
    """What each line must find."""
    event_, letter_, message = (
        ("events", ids["ours"]),
        ("dead-letters", ids["letter of ours"]),
        ("inbox", ids["ours"]),
    )
    shipped, mail = ("events", ids["shipped"]), ("tasks", ids["mail"])
    late = {("inbox", ids["late"]), ("dead-letters", ids["letter of late"])}
    return {
        "customer:47": {event_, letter_, message},
        "customer_id:47 kind:dead-letters": {letter_},
        "order:o-1 reason:timeout": {letter_, message},
        "order.id:o-1 type:order_* since:6h": {event_, letter_, message},
        "customer:47 type:parcel_*": set(),
        "customer:48": {("events", ids["waiting"])},
        "customer:49": set(),
        "order:o-shipped": {shipped},
        "key:order:o-shipped": {shipped},
        "aggregate:order:o-shipped status:dead": {shipped},
        "type:parcel_*": {shipped},
        "type:order_lat*": late,
        "type:order_lat* until:6h": late,
        "type:order_lat* since:6h": set(),
        "reason:timeout queue:mail": {mail},
        f"{number('chain')}": {event_, mail},
        f"correlation:{number('chain')} kind:tasks": {mail},
        ids["ours"][:13]: {event_, letter_, message},
        f"{ids['ours'][:13]} status:published": {event_},
        "subscription:from_upstream status:open reason:timeout": {letter_},
    }


async def test_a_line_finds_the_same_in_every_face(
    api: Api, settings: Settings, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = fill(database_url)
    assert set((await index(database_url, SEARCH)).made) == {"order_placed.customer_id", "order_placed.order.id"}
    (tmp_path / "relay.toml").write_text(
        f"""[contexts.sea]
database_url = {json.dumps(database_url)}
search = {{ order_placed = ["customer_id", "order.id"] }}
[contexts.sea.subscriptions.from_upstream]
stream = "UP"
filter_subject = "up.>"
handler = "http://127.0.0.1:9/handle"
"""
    )
    monkeypatch.chdir(tmp_path)
    for line, wanted in lines(ids).items():
        body = await api.get("/find", params={"q": line})
        assert {(it["kind"], it["id"]) for it in body["rows"]} == wanted, line
        assert body["unread"] == {}
        if " " in line or ":" in line:
            page = await api.client.get("/find", params={"q": line})
            assert page.status_code == 200, page.text
            assert all(f"/contexts/sea/{kind}/show?id={id}" in page.text for kind, id in wanted), line
            assert page.text.count('<td data-label="What"') == len(wanted), line
    for line in ("customer:47", "type:parcel_*"):
        result = await asyncio.to_thread(CliRunner().invoke, create_app(["find"]), ["find", line, "--json"])
        assert result.exit_code == 0, result.output
        assert {(it["kind"], it["id"]) for it in json.loads(result.output)["rows"]} == lines(ids)[line]


async def test_a_word_alone_leads_to_the_life_of_what_it_names(api: Api, database_url: str) -> None:
    ids = fill(database_url)
    answer = await api.client.get("/find", params={"q": ids["ours"]})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/explain?id={ids['ours']}")
    assert (await api.client.get("/find", params={"q": " "})).status_code == 303


@pytest.mark.parametrize("line", ["customer:1 order:2", "type:a type:b", "kind:nothing", "since:soon", '"'])
async def test_a_line_that_cannot_be_answered_says_why(api: Api, line: str) -> None:
    error = (await api.get("/find", 422, params={"q": line}))["error"]
    assert (error["code"], error["field"], bool(error["hint"])) == ("INVALID_REQUEST", "q", True)
    assert (await api.client.get("/find", params={"q": line})).status_code == 422


async def test_a_context_that_does_not_answer_is_named(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer
) -> None:
    ids = fill(database_url)
    async with serving(configured(database_url, nats_server.url, valkey.url)) as api:
        body = await api.get("/find", params={"q": "type:parcel_*"})
        assert [*body["unread"]] == ["quiet"]
        assert [it["id"] for it in body["rows"]] == [ids["shipped"]]


async def test_indexes_are_made_once_and_dropped_when_nobody_wants_them(database_url: str) -> None:
    fill(database_url)
    await index(database_url, SEARCH)
    assert await index(database_url, SEARCH) == IndexChanges([], [])
    with psycopg.connect(database_url) as connection:
        connection.execute("SET enable_seqscan = off")
        asked = found_by("order_placed", "order.id").as_string(connection)
        plan = connection.execute(f"EXPLAIN {asked}".encode(), {"value": "o-1", "limit": 9}).fetchall()
    assert name_of("order_placed", "order.id") in str(plan)
    changes = await index(database_url, {"order_placed": ["order.id"]})
    assert changes == IndexChanges([], [name_of("order_placed", "customer_id")])
    assert (await index(database_url, {})).dropped == [name_of("order_placed", "order.id")]
