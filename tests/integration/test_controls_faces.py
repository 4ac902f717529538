"""Pauses and limits in the command line, the HTTP API and the console: the same rows, the same words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from relay.devstack import NatsServer, ValkeyServer
from tests.integration.console_pages import Browser
from tests.integration.ops_api import Api, configured, serving
from tests.integration.publishing import query
from tests.integration.test_cli_operating import SEA, Shell
from tests.integration.test_console import browser, guarded, land, limits

__all__ = ["browser", "guarded", "land", "limits"]
pytestmark = pytest.mark.anyio

NAME = "from_upstream"
HERE = "/contexts/land"
IN_FORCE = "SELECT what, name, act, until, concurrency, reason, by FROM controls"


@pytest.fixture
async def api(database_url: str, nats_server: NatsServer, valkey: ValkeyServer) -> AsyncIterator[Api]:
    async with serving(configured(database_url, nats_server.url, valkey.url)) as api:
        yield api


async def test_the_command_line_pauses_limits_and_takes_back(tmp_path: Path, database_url: str) -> None:
    shell = Shell(tmp_path, database_url)
    paused = shell(
        "subscriptions", "pause", NAME, "--for", "2h", "--note", "charges twice", "--actor", "ann", *SEA
    )
    assert f"subscription {NAME} is paused by ann" in paused
    assert "charges twice" in shell("controls", "list", *SEA)
    [row] = [it for it in shell.json("subscriptions", "list", *SEA) if it["name"] == NAME]
    assert (row["state"], row["by"], row["reason"]) == ("paused", "ann", "charges twice")
    assert "paused" in shell("subscriptions", "show", NAME, *SEA)
    assert "charges twice" in shell("backlog", *SEA)
    assert "goes on" in shell("subscriptions", "resume", NAME, *SEA)
    assert "was not paused" in shell("subscriptions", "resume", NAME, *SEA)
    shell("subscriptions", "limit", NAME, "--concurrency", "5", "--rate", "100/1m", *SEA)
    assert "5 at once, 100/1m" in shell("controls", "list", *SEA)
    shell("subscriptions", "limit", NAME, "--concurrency", "1", *SEA)
    assert "5 at once, 100/1m" in shell("subscriptions", "restore", NAME, *SEA)
    shell("subscriptions", "limit", NAME, "--none", *SEA)
    assert "Nothing is paused or limited" in shell("controls", "list", *SEA)


@pytest.mark.parametrize(
    ("command", "what", "name"),
    [
        (("tasks", "pause", "--type", "mail"), "task_type", "mail"),
        (("tasks", "pause", "--queue", "mail"), "task_queue", "mail"),
        (("outbox", "pause", "--type", "billed"), "event_type", "billed"),
        (("outbox", "pause"), "publishing", ""),
        (("controls", "pause", "publishing"), "publishing", ""),
    ],
)
def test_each_group_has_its_own_words(
    tmp_path: Path, database_url: str, command: tuple[str, ...], what: str, name: str
) -> None:
    shell = Shell(tmp_path, database_url)
    shell(*command, *SEA)
    [row] = query(database_url, IN_FORCE)
    assert (row["what"], row["name"], row["act"], row["until"]) == (what, name, "pause", None)
    resumed = tuple("resume" if it == "pause" else it for it in command)
    assert "goes on" in shell(*resumed, *SEA)
    assert query(database_url, IN_FORCE) == []


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("subscriptions", "pause", "nobody"), "UNKNOWN_CONTROL"),
        (("subscriptions", "restore", NAME), "UNKNOWN_CONTROL"),
        (("subscriptions", "limit", NAME), "INVALID_REQUEST"),
        (("subscriptions", "limit", NAME, "--rate", "fast"), "INVALID_REQUEST"),
        (("subscriptions", "pause", NAME, "--for", "2h", "--until", "2099-01-01T00:00Z"), "INVALID_REQUEST"),
        (("subscriptions", "pause", NAME, "--for", "3y"), "INVALID_REQUEST"),
        (("subscriptions", "pause", NAME, "--until", "2020-01-01T00:00Z"), "INVALID_REQUEST"),
        (("tasks", "pause"), "INVALID_REQUEST"),
        (("tasks", "pause", "--type", "no such"), "INVALID_TASK"),
        (("controls", "pause", "publishing", "all"), "INVALID_REQUEST"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, database_url: str, command: tuple[str, ...], code: str) -> None:
    assert code in Shell(tmp_path, database_url)(*command, *SEA, status=1)
    assert query(database_url, IN_FORCE) == []


async def test_the_api_pauses_limits_and_takes_back(api: Api) -> None:
    path = "/contexts/sea/controls"
    [known, *_] = await api.get("/contexts/sea/subscriptions")
    about = {"what": "subscription", "name": known["name"]}
    paused = await api.post(f"{path}/pause", {**about, "for": "2h", "note": "charges twice"})
    assert (paused["act"], paused["reason"]) == ("pause", "charges twice")
    assert await api.get(path) == [paused]
    assert (await api.get(f"/contexts/sea/subscriptions/{known['name']}"))["state"] == "paused"
    assert (await api.post(f"{path}/resume", about))["was"] is True
    assert (await api.post(f"{path}/resume", about))["was"] is False
    await api.post(f"{path}/limit", {**about, "concurrency": 5})
    assert (await api.post(f"{path}/limit", {**about, "rate": "10/1s"}))["was"] == "5 at once"
    assert (await api.post(f"{path}/restore", about))["was"] == "5 at once"
    assert (await api.post(f"{path}/limit", about))["was"] == "5 at once"
    assert await api.get(path) == []
    wrong = await api.post(f"{path}/pause", {"what": "subscription", "name": "nobody"}, 404)
    assert wrong["error"]["code"] == "UNKNOWN_CONTROL"
    actions = [it["action"] for it in await api.get("/contexts/sea/audit")]
    assert actions[-1] == "control pause"
    assert len(actions) == 6, "the second resume did nothing"


async def test_the_console_pauses_and_lets_go_on(browser: Browser, land: str) -> None:
    page = await browser.open(f"{HERE}/controls")
    assert "Nothing is paused or limited" in page.text
    asked = await browser.open(f"{HERE}/controls/pause?what=publishing")
    done = await browser.send(f"{HERE}/controls/pause", [*asked.fields, ("for", "2h"), ("note", "import")])
    assert "It rests." in done.text
    [row] = query(land, IN_FORCE)
    assert (row["what"], row["reason"], row["until"] is None) == ("publishing", "import", False)
    page = await browser.open(f"{HERE}/controls")
    assert "import" in page.text
    [link] = [it for it in page.links if "/controls/resume?what=publishing" in it]
    asked = await browser.open(link)
    assert "It goes on." in (await browser.send(f"{HERE}/controls/resume", asked.fields)).text
    assert query(land, IN_FORCE) == []
    form = await browser.open(f"{HERE}/controls/limit")
    assert "task type" in form.text
    fields = [("what", "task_type"), ("name", "mail"), ("rate", "10/1s")]
    assert "The limit holds." in (await browser.send(f"{HERE}/controls/limit", fields)).text
    assert "10/1s" in (await browser.open(f"{HERE}/controls")).text
