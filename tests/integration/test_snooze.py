"""A dead letter is snoozed: hidden from the open ones until its time, then open and alerted again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.adapters.postgres.alerts import PostgresAlerts
from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.pool import connected
from relay.devstack import NatsServer, ValkeyServer
from tests.integration.console_pages import Browser
from tests.integration.console_rows import letter
from tests.integration.ops_api import Api, configured, serving
from tests.integration.publishing import query
from tests.integration.test_cli_operating import Shell

pytestmark = pytest.mark.anyio

LETTERS = "/contexts/sea/dead-letters"
SEA = ("--context", "sea")
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _letters(database_url: str) -> None:
    """Three dead letters, of which an alert has told."""
    with psycopg.connect(database_url) as connection:
        for n in range(1, 4):
            letter(connection, f"dead-{n}", n=n, subscription="from_upstream")
        connection.execute("UPDATE dead_letters SET alerted_at = now() - interval '1 hour'")


@pytest.fixture
async def api(database_url: str, nats_server: NatsServer, valkey: ValkeyServer) -> AsyncIterator[Api]:
    async with serving(configured(database_url, nats_server.url, valkey.url)) as api:
        yield api


@pytest.fixture
def shell(tmp_path: Path, database_url: str) -> Shell:
    return Shell(tmp_path, database_url)


def time_passes(url: str, by: str) -> None:
    """Let all snoozes end sooner."""
    query(url, f"UPDATE dead_letters SET snoozed_until = snoozed_until - interval '{by}' RETURNING id")


async def to_alert(url: str) -> list[int]:
    """The incidents that the next alert names. It is not sent."""
    async with connected(url, "test") as source, PostgresAlerts(source).unsent() as held:
        assert held is not None
        return [it.about["id"] for it in held.causes if it.open]


async def counted(url: str) -> int:
    """How many open ones the metrics and the backlog know."""
    async with connected(url, "test") as source:
        return sum(it.count for it in (await PostgresBacklogReader(source).backlogs()).incidents)


def states(url: str) -> dict[int, str]:
    return {
        it["id"]: it["state"]
        for it in query(url, "SELECT id, relay_incident_state(d) AS state FROM dead_letters AS d ORDER BY id")
    }


async def test_a_snoozed_letter_is_not_open_until_its_time_and_is_then_alerted_again(
    api: Api, database_url: str
) -> None:
    done = await api.post(f"{LETTERS}/snooze", {"ids": [1], "for": "1h", "note": "the service is being mended"})
    assert (done["action"], done["done"], done["refused"]) == ("snooze", ["1"], [])
    assert [it["id"] for it in (await api.get(LETTERS))["items"]] == [3, 2]
    assert sum(it["count"] for it in await api.get(f"{LETTERS}/groups")) == 2
    assert (await counted(database_url), await to_alert(database_url)) == (2, [])
    [snoozed] = (await api.get(LETTERS, params={"status": "snoozed"}))["items"]
    until = datetime.fromisoformat(snoozed["snoozed_until"])
    assert timedelta(minutes=59) < until - datetime.now(UTC) <= HOUR
    assert (snoozed["id"], snoozed["status"]) == (1, "snoozed")
    time_passes(database_url, "59 minutes")
    assert (await counted(database_url), await to_alert(database_url)) == (2, [])
    time_passes(database_url, "2 minutes")
    assert (await counted(database_url), await to_alert(database_url)) == (3, [1])
    assert [it["id"] for it in (await api.get(LETTERS, params={"limit": 3}))["items"]] == [3, 2, 1]
    shown = await api.get(f"{LETTERS}/1")
    assert (shown["status"], [it["action"] for it in shown["history"]]) == ("open", ["dlq.snooze"])
    [entry] = query(database_url, "SELECT actor, action, ids, note FROM audit_log")
    assert entry == {
        "actor": "local",
        "action": "dlq.snooze",
        "ids": ["1"],
        "note": "the service is being mended",
    }


async def test_waking_takes_a_snooze_back_without_another_alert(api: Api, database_url: str) -> None:
    await api.post(f"{LETTERS}/snooze", {"all": True, "for": "2d"})
    assert {*states(database_url).values()} == {"snoozed"}
    refused = await api.post(f"{LETTERS}/wake", {"ids": [9]}, 404)
    assert refused["refused"][0]["error"]["code"] == "UNKNOWN_INCIDENT"
    assert (await api.post(f"{LETTERS}/wake", {"all": True}))["count"] == 3
    assert ({*states(database_url).values()}, await to_alert(database_url)) == ({"open"}, [])
    again = await api.post(f"{LETTERS}/wake", {"ids": [1]}, 409)
    assert again["refused"][0]["error"]["code"] == "INCIDENT_CLOSED"


async def test_a_snoozed_letter_may_be_decided_about_and_a_closed_one_is_not_snoozed(
    api: Api, database_url: str
) -> None:
    await api.post(f"{LETTERS}/snooze", {"ids": [1, 2], "for": "1h"})
    assert (await api.post(f"{LETTERS}/resolve", {"ids": [1], "note": "by hand"}))["done"] == ["1"]
    assert (await api.post(f"{LETTERS}/requeue", {"ids": [2]}))["done"] == ["2"]
    outcome = await api.post(f"{LETTERS}/snooze", {"ids": [1, 2, 3], "for": "1h"})
    codes = {it["id"]: it["error"]["code"] for it in outcome["refused"]}
    assert (outcome["done"], codes) == (["3"], {"1": "INCIDENT_CLOSED", "2": "INCIDENT_CLOSED"})
    time_passes(database_url, "2 hours")
    assert states(database_url) == {1: "resolved", 2: "requeued", 3: "open"}
    assert await to_alert(database_url) == [3]


async def test_many_are_snoozed_by_filter_after_a_dry_run(api: Api, database_url: str) -> None:
    some = {"filter": {"reason": "status_503"}, "for": "30m"}
    counted = await api.post(f"{LETTERS}/snooze", {**some, "dry_run": True})
    assert (counted["count"], {*states(database_url).values()}) == (3, {"open"})
    assert (await api.post(f"{LETTERS}/snooze", {**some, "limit": 2}, 409))["error"]["code"] == "TOO_MANY"
    assert (await api.post(f"{LETTERS}/snooze", some))["count"] == 3
    assert (await api.post(f"{LETTERS}/snooze", some))["count"] == 0


@pytest.mark.parametrize("duration", ["soon", "0s", "-1h", "2y", "", None, 5])
async def test_a_wrong_duration_is_named_and_hides_nothing(api: Api, database_url: str, duration: Any) -> None:
    refused = await api.post(f"{LETTERS}/snooze", {"all": True, "for": duration}, 422)
    assert refused["error"]["field"] == "for"
    assert {*states(database_url).values()} == {"open"}


async def test_the_command_line_snoozes_and_wakes(shell: Shell, database_url: str) -> None:
    assert shell("dlq", "snooze", "1", "--for", "1h", *SEA) == "sea: snoozed 1\n"
    assert [it["id"] for it in shell.json("dlq", "list", *SEA)] == [3, 2]
    assert [it["id"] for it in shell.json("dlq", "list", "--status", "snoozed", *SEA)] == [1]
    assert "--for" in shell("dlq", "snooze", "1", "--for", "soon", *SEA, status=1)
    assert "would be snoozed" in shell("dlq", "snooze", "--all", "--for", "1h", "--dry-run", *SEA)
    assert shell("dlq", "wake", "1", *SEA) == "sea: woken 1\n"
    assert {*states(database_url).values()} == {"open"}


async def test_the_console_has_a_button_with_a_field_and_an_undo(api: Api, database_url: str) -> None:
    browser = Browser(api.client)
    assert f"{LETTERS}/snooze?ids=1" in (await browser.open(f"{LETTERS}/show", id="1")).links
    form = await browser.open(f"{LETTERS}/snooze", ids="1")
    assert [found["name"] for tag, found in form.tags if tag == "input" and "name" in found] == [
        *("q", "selection", "for", "note")  # the first is the search of every page
    ]
    wrong = await browser.send(f"{LETTERS}/snooze", [*form.fields, ("for", "soon")], 422)
    [field] = [found for tag, found in wrong.tags if found.get("name") == "for"]
    assert (field["value"], field["aria-invalid"]) == ("soon", "true")
    done = await browser.send(f"{LETTERS}/snooze", [*wrong.fields, ("for", "1h")])
    assert "Undo" in done.text
    [undo] = [it for tag, found in done.tags if tag == "form" and "/undo" in (it := found["action"] or "")]
    assert states(database_url)[1] == "snoozed"
    assert "Snoozed until" in (await browser.open(f"{LETTERS}/show", id="1")).text
    assert "It took back" in (await browser.send(undo, [])).text
    assert states(database_url)[1] == "open"
