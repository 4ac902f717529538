"""The web console: the inbox, parked keys, the schedule, queues, and the pages of the whole system."""

from __future__ import annotations

import re

import pytest

from relay.devstack import ValkeyServer
from tests.integration.console_pages import Browser
from tests.integration.console_rows import number
from tests.integration.publishing import query
from tests.integration.test_console import browser, guarded, land, limits

__all__ = ["browser", "guarded", "land", "limits"]
pytestmark = pytest.mark.anyio
HERE = "/contexts/land"


async def test_messages_of_the_inbox_are_listed_shown_and_tried_now(browser: Browser, land: str) -> None:
    assert (await browser.open(f"{HERE}/inbox")).data("total") == "21"
    page = await browser.open(f"{HERE}/inbox/groups")
    assert re.search(r"\bstatus_503\b.* 1 billing", page.text)
    [link] = [link for link in page.links if "error=status_503" in link]
    assert (await browser.open(link)).data("total") == "1"
    id = str(number("failing-message"))
    shown = await browser.open(f"{HERE}/inbox/show?id={id}")
    assert "status_503" in shown.text
    assert "event_version" not in shown.html
    assert "event_version" in (await browser.open(f"{HERE}/inbox/show?id={id}&payload=true")).text
    assert (await browser.open(f"{HERE}/inbox/retry?ids={id}")).data("count") == "1"
    asked = await browser.open(f"{HERE}/inbox/retry?all=1")
    assert (await browser.send(f"{HERE}/inbox/retry", asked.fields)).outcome == ("1", "0")
    assert query(land, "SELECT action FROM audit_log ORDER BY id DESC")[0]["action"] == "inbox.retry"


async def test_parked_keys_are_released_one_or_all(browser: Browser, land: str) -> None:
    page = await browser.open(f"{HERE}/parked")
    assert page.data("total") == "2"
    [one] = [link for link in page.links if "key=order%3A7" in link]
    asked = await browser.open(one)
    assert "Release 1 parked key: billing/order:7?" in asked.text
    late = await browser.open(one)
    assert (await browser.send(f"{HERE}/parked/release", asked.fields)).outcome == ("1", "0")
    again = await browser.send(f"{HERE}/parked/release", asked.fields)
    assert again.outcome == ("1", "0")  # what was done already, and nothing more
    nothing = await browser.send(f"{HERE}/parked/release", late.fields)
    assert nothing.outcome == ("0", "0")
    assert "Nothing was done" in nothing.text
    assert "NOT_PARKED" in (await browser.open(one, 409)).text
    assert "INVALID_REQUEST" in (await browser.send(f"{HERE}/parked/release", [], 422)).text
    asked = await browser.open(f"{HERE}/parked/release?all=1")
    every = await browser.send(f"{HERE}/parked/release", [*asked.fields, ("note", "go")])
    assert every.outcome == ("1", "0")
    assert (await browser.open(f"{HERE}/parked")).data("total") is None
    assert query(land, "SELECT note FROM audit_log ORDER BY id DESC")[0]["note"] == "go"


async def test_jobs_are_run_paused_and_go_on(browser: Browser, land: str) -> None:
    page = await browser.open(f"{HERE}/schedule")
    assert "No scheduler leads" in page.text
    assert not [link for link in page.links if "pause?name=publish" in link]
    for verb, told in (
        ("pause", "Pause: 1 job"),
        ("resume", "Resume: 1 job"),
        ("run", "begins it within seconds"),
    ):
        asked = await browser.open(f"{HERE}/schedule/{verb}?name=nightly_report")
        assert "nightly_report" in asked.text
        assert told in (await browser.send(f"{HERE}/schedule/{verb}", [*asked.fields, ("note", verb)])).text
        paused = query(land, "SELECT paused_at FROM scheduled_jobs WHERE name = 'nightly_report'")[0]["paused_at"]
        assert (paused is not None) == (verb == "pause")
    asked = await browser.open(f"{HERE}/schedule/pause?name=publish")
    assert "NOT_PAUSABLE" in (await browser.send(f"{HERE}/schedule/pause", asked.fields, 409)).text
    assert "UNKNOWN_JOB" in (await browser.open(f"{HERE}/schedule/run?name=none", 404)).text


async def test_what_was_done_and_what_was_archived_is_listed(browser: Browser) -> None:
    page = await browser.open(f"{HERE}/audit?actor=ann&action=")
    assert "ann dlq.requeue 2" in page.text
    assert "mended" in page.text
    assert "dlq.requeue" not in (await browser.open(f"{HERE}/audit?actor=bob")).text
    assert "1 batch , 5,000 rows, 403 KB" in (await browser.open(f"{HERE}/archive")).text
    assert "has no archive" in (await browser.open("/contexts/sea/archive")).text


async def test_streams_queues_and_the_fleet_are_shown(browser: Browser, valkey: ValkeyServer) -> None:
    streams = await browser.open("/streams")
    assert "stream SEA_EVENTS" in streams.text
    assert "relay streams ensure" in streams.text
    assert "No worker is there" in (await browser.open("/fleet")).text
    assert "publish" in (await browser.open("/queues")).text
    assert "No job is dead" in (await browser.open("/queues/jobs?queue=relay-publish")).text
    assert "UNKNOWN_QUEUE" in (await browser.open("/queues/jobs?queue=none", 404)).text
    for which in ("all=1", "ids=x"):
        asked = await browser.open(f"/queues/delete?queue=relay-publish&{which}", 404)
        assert "UNKNOWN_MESSAGE" in asked.text


async def test_who_may_only_read_does_none_of_it(guarded: Browser) -> None:
    reader = Browser(guarded.client, "reader")
    for path in (
        "/contexts/sea/parked/release",
        "/contexts/sea/schedule/run",
        "/contexts/sea/schedule/pause",
        "/contexts/sea/inbox/retry",
        "/contexts/sea/events/replay",
        "/queues/requeue",
        "/queues/delete",
    ):
        assert "NOT_ALLOWED" in (await reader.open(f"{path}?all=1", 403)).text
        assert "NOT_ALLOWED" in (await reader.send(path, [("all", "1")], 403)).text
    assert "NO_PAYLOADS" in (await reader.open("/queues/jobs?queue=relay-publish&args=true", 403)).text
