"""A subscription and a type of tasks as one thing: in the API, the console and the command line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.adapters.dramatiq.gates import Gates
from relay.adapters.jetstream.topology import ensure
from relay.adapters.members import Members
from relay.credentials import jetstream
from relay.devstack import NatsServer, ValkeyServer
from relay.domain.members import Member, digest_of, handled_name
from relay.domain.standstill import ReleaseOfFleet
from relay.ops.api.work import SubscriptionNow, TaskTypeNow
from relay.settings import Settings
from tests.integration.console_pages import Browser
from tests.integration.console_rows import failing_message, fill, fill_more, letter, number, task
from tests.integration.ops_api import Api, serving
from tests.integration.test_cli_operating import Shell
from tests.integration.test_console import land

__all__ = ["land"]
pytestmark = pytest.mark.anyio

HERE = "/contexts/land"
BILLING = f"{HERE}/subscriptions/billing"
INVOICES = f"{HERE}/task-types/send_invoice"
#: A message in each state that rows of a subscription may have, by what makes it so.
STATES = {
    "running": "claimed_until = now() + interval '1 h', claim_token = gen_random_uuid()",
    "held": "next_attempt_at = 'infinity'",
    "parked": "enqueued_at = 'infinity', order_key = 'order:7', let_go_at = now()",
}


def settings(sea: str, database: str, nats: str, redis: str) -> Settings:
    billing = {"stream": "SEA_EVENTS", "filter_subject": "sea.event.>", "handler": "http://127.0.0.1:9/handle"}
    land = {"database_url": database, "subscriptions": {"billing": billing}}
    contexts = {"sea": {"database_url": sea}, "land": land}
    return Settings.model_validate({"nats_url": nats, "redis_url": redis, "contexts": contexts})


@pytest.fixture
def filled(database_url: str, land: str) -> str:
    """The database of a context with rows in every state."""
    fill(database_url, land)
    fill_more(land)
    with psycopg.connect(land) as conn:
        for state, how in STATES.items():
            failing_message(conn, state)
            conn.execute(f"UPDATE inbox_messages SET {how} WHERE message_id = %s".encode(), [number(state)])
        for n, state in enumerate(("pending", "delivered", "failed", "completed")):
            task(conn, f"invoice-{n}", state, error="KeyError at mail.py:3: 'to'" if state == "failed" else None)
        later = "UPDATE task_outbox SET available_at = now() + interval '1 h' WHERE id = %s"
        task(conn, "invoice-later")
        conn.execute(later, [number("invoice-later")])
    return land


@pytest.fixture
async def api(database_url: str, filled: str, nats_server: NatsServer, valkey: ValkeyServer) -> AsyncIterator[Api]:
    async with serving(settings(database_url, filled, nats_server.url, valkey.url)) as api:
        yield api


def states(found: Any) -> dict[str, int]:
    return {it.state: it.count for it in found.states}


async def test_the_api_tells_a_subscription_as_one_object(api: Api) -> None:
    found = SubscriptionNow.model_validate(await api.get(f"{BILLING}?span=6h"))
    assert states(found) == {"waiting": 1, "running": 1, "failing": 1, "parked": 1, "held": 1, "dead": 19}
    assert (found.waiting, found.parked_keys, found.state, found.away) == (4, 2, "runs", None)
    assert found.oldest_seconds >= 12
    dead = {it.code: it.count for it in found.causes if it.state == "dead"}
    assert dead == {"timeout": 9, "status_422": 6, "status_503": 3, "unreadable": 1}
    assert [it.id for it in found.running] == [str(number("running"))]
    assert found.history is not None
    assert found.history.now is not None
    assert found.max_attempts > 0


async def test_the_api_tells_a_type_of_tasks_as_one_object(api: Api) -> None:
    found = TaskTypeNow.model_validate(await api.get(INVOICES))
    # The type has a failed task from elsewhere, too.
    assert states(found) == {"waiting": 2, "delayed": 1, "dead": 2}
    assert (found.waiting, found.queues, found.history) == (2, ["mail"], None)
    assert {(it.code, it.count) for it in found.causes} == {("raised_KeyError", 2)}


async def test_what_nobody_knows_is_not_found_and_says_what_there_is(api: Api) -> None:
    unknown = (await api.get(f"{HERE}/subscriptions/none", 404))["error"]
    assert (unknown["code"], "billing" in unknown["hint"]) == ("UNKNOWN_CONTROL", True)
    assert (await api.get(f"{HERE}/task-types/none", 404))["error"]["code"] == "NOTHING_FOUND"
    assert (await api.get(f"{HERE}/task-types/a%20b", 422))["error"]["field"] == "type"
    assert "span" in json.dumps(await api.get(f"{BILLING}?span=2h", 422))


async def test_a_pause_and_a_limit_are_told_with_their_reason(api: Api) -> None:
    await api.post(f"{HERE}/controls/limit", {"what": "subscription", "name": "billing", "concurrency": 2})
    assert (await api.get(BILLING))["state"] == "limited"
    await api.post(f"{HERE}/controls/pause", {"what": "subscription", "name": "billing", "note": "charges twice"})
    found = await api.get(BILLING)
    assert (found["state"], found["reason"], found["limit"]) == ("paused", "charges twice", "2 at once")
    # A paused queue stops all types that are in it.
    await api.post(f"{HERE}/controls/pause", {"what": "task_queue", "name": "mail"})
    assert (await api.get(INVOICES))["state"] == "paused"


async def test_the_console_shows_them_with_buttons_that_act(api: Api) -> None:
    page = await Browser(api.client).open(BILLING)
    assert "timeout" in page.text
    assert "4 oldest" in page.text
    assert page.html.count("<figure") >= 4
    for verb in ("pause", "limit"):
        assert f"{HERE}/controls/{verb}?what=subscription&name=billing" in page.links
    # Each figure leads to the rows that it counts.
    counted = {"billing&status=running": 1, "billing&status=failing": 1, "/dead-letters?subscription=billing": 19}
    for part, count in counted.items():
        where = next(it for it in page.links if it.endswith(part))
        assert (await Browser(api.client).open(where)).data("total") == str(count)
    tasks = await Browser(api.client).open(INVOICES)
    assert f"{HERE}/controls/pause?what=task_type&name=send_invoice" in tasks.links
    assert "Nothing is recorded" in tasks.text
    assert "billing" in (await Browser(api.client).open(f"{HERE}/subscriptions/none", 404)).text


async def test_versions_that_messages_wait_for_are_told_with_the_releases_that_know_them(
    api: Api, filled: str, valkey: ValkeyServer
) -> None:
    assert SubscriptionNow.model_validate(await api.get(BILLING)).versions == []
    with psycopg.connect(filled) as conn:
        failing_message(conn, "newer")
        error = "UNKNOWN_VERSION: no handler for order_placed v2"
        conn.execute(
            "UPDATE inbox_messages SET last_error = %s, event_type = 'order_placed', event_version = 2"
            " WHERE message_id = %s",
            [error, number("newer")],
        )
    new = digest_of([handled_name("land", "billing", "order_placed", 2)])
    gates = Gates(valkey.url, api.ops.settings.redis_namespace)
    try:
        members = Members(gates.client, api.ops.settings.redis_namespace)
        for id, release, digest in (("a", "before", ""), ("b", "before", ""), ("c", "after", new)):
            worker = Member(id=id, kind="worker", host="h", pid=1, version="1", release=release, handles=digest)
            await members.beat(worker)
        [waits] = SubscriptionNow.model_validate(await api.get(BILLING)).versions
        assert (waits.event_type, waits.event_version, waits.count) == ("order_placed", 2, 1)
        assert waits.releases == [ReleaseOfFleet("1 after", True, 1), ReleaseOfFleet("1 before", False, 2)]
        page = await Browser(api.client).open(BILLING)
        assert page.data("versions") == "1"
        assert "1 of release 1 after 2 of release 1 before" in page.text
        rows = next(it for it in page.links if it.endswith("status=failing&error=UNKNOWN_VERSION"))
        assert (await Browser(api.client).open(rows)).data("total") == "1"
    finally:
        await gates.client.flushdb()
        await gates.aclose()


@pytest.mark.parametrize(
    "path",
    [
        "/",
        f"{HERE}/controls",
        f"{HERE}/history",
        f"{HERE}/parked",
        f"{HERE}/inbox?subscription=billing",
        f"{HERE}/inbox/show?id={number('failing-message')}",
        f"{HERE}/dead-letters/show?id=1",
        "/all/parked",
        "/streams",
        "/fleet",
        "/doctor",
    ],
)
async def test_each_page_that_names_a_subscription_leads_to_it(api: Api, stream: None, path: str) -> None:
    assert BILLING in (await Browser(api.client).open(path)).links


@pytest.fixture
async def stream(api: Api, nats_server: NatsServer) -> AsyncIterator[None]:
    """The stream with the consumer."""
    wanted = api.ops.settings
    async with jetstream(wanted) as js:
        await ensure(js, wanted.streams(), wanted.consumers())
        yield
        for it in wanted.streams():
            await js.delete_stream(it.name)


@pytest.mark.parametrize(
    "path",
    [
        f"{HERE}/tasks?type=send_invoice",
        f"{HERE}/tasks/show?id={number('invoice-0')}",
        f"{HERE}/controls",
    ],
)
async def test_each_page_that_names_a_type_of_tasks_leads_to_it(api: Api, path: str) -> None:
    await api.post(f"{HERE}/controls/limit", {"what": "task_type", "name": "send_invoice", "concurrency": 2})
    assert INVOICES in (await Browser(api.client).open(path)).links


@pytest.mark.parametrize("width", [80, 120])
def test_the_command_line_shows_them(tmp_path: Path, database_url: str, width: int) -> None:
    with psycopg.connect(database_url) as conn:
        letter(conn, "dead", subscription="from_upstream")
        task(conn, "failed", "failed", error="KeyError at mail.py:3: 'to'")
    shell = Shell(tmp_path, database_url)
    printed = shell("subscriptions", "show", "from_upstream", "--context", "sea", width=width)
    assert "1 dead, oldest" in printed
    assert "dead: 1 status_503" in printed
    assert json.loads(shell("subscriptions", "show", "from_upstream", "--json"))["max_attempts"] > 0
    assert "dead: 1 raised_KeyError" in shell("tasks", "type", "send_invoice", "--context", "sea", width=width)
    assert "NOTHING_FOUND" in shell("tasks", "type", "none", "--context", "sea", status=1)
