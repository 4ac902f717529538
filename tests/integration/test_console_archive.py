"""The archive in the web console: files are verified, rows restored, events replayed; and what is refused."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
import typer

from relay.cli.archive import app as archive_commands
from relay.ops.api.common import OpsLimits
from relay.ops.console import archive as console
from relay.settings import Settings
from tests.integration.archiving import Archive
from tests.integration.console_pages import Browser, Page
from tests.integration.ops_api import serving
from tests.integration.publishing import query
from tests.integration.test_console import guarded, limits
from tests.integration.test_ops_archive import archive, settings
from tests.unit.ops_support import USERS

__all__ = ["archive", "guarded", "limits", "settings"]
pytestmark = pytest.mark.anyio
TYPE = ("type", "vibe_created")


@pytest.fixture
async def browser(settings: Settings, limits: OpsLimits) -> AsyncIterator[Browser]:
    """The console of a context whose archive has five events in three files."""
    async with serving(settings, limits=limits) as api:
        yield Browser(api.client)


@pytest.fixture
def here(archive: Archive) -> str:
    return f"/contexts/{archive.relay.context}/archive"


def verified(page: Page) -> tuple[str | None, ...]:
    """How many files are sound, are damaged, and belong to no batch."""
    return tuple(page.data(name) for name in ("sound", "damaged", "left"))


async def test_files_are_verified_all_or_chosen(browser: Browser, archive: Archive, here: str) -> None:
    files = [found["value"] for tag, found in (await browser.open(here)).tags if found.get("name") == "ids"]
    assert len(files) == 3
    asked = await browser.open(f"{here}/verify", ids=files[:2])
    assert [value for name, value in asked.fields if name == "files"] == files[:2]
    assert verified(await browser.send(f"{here}/verify", asked.fields)) == ("2", "0", "0")
    every = [("kind", ""), ("since", ""), ("until", "")]
    assert verified(await browser.send(f"{here}/verify", every)) == ("3", "0", "0")
    (archive.root / str(files[0])).unlink()
    (archive.root / archive.relay.context / "outbox" / "half").write_text("left by a run")
    page = await browser.open(f"{here}/restore?all=1", 500)
    assert str(files[0]) in page.text
    assert "relay archive verify" in page.text
    page = await browser.send(f"{here}/verify", every)
    assert verified(page) == ("2", "1", "1")
    assert str(files[0]) in page.text
    for narrowed in ([("kind", "tasks")], [("until", "400d")], [("since", "2026-01-01"), ("until", "2025-12-31")]):
        assert verified(await browser.send(f"{here}/verify", narrowed)) == ("0", "0", "0")
    assert "'x'" in (await browser.send(f"{here}/verify", [("files", "x")], 422)).text
    assert "since" in (await browser.send(f"{here}/verify", [("since", "long ago")], 422)).text


@pytest.mark.parametrize("limits", [OpsLimits(files=2)], ids=["few"])
async def test_more_files_than_a_form_may_read_are_verified_by_a_command(
    browser: Browser, archive: Archive, here: str
) -> None:
    every = [("kind", ""), ("since", ""), ("until", "")]
    command = f"relay archive verify --context {archive.relay.context}"
    assert command in (await browser.send(f"{here}/verify", every, 409)).text


async def test_rows_come_back_after_a_page_that_counts_them(browser: Browser, archive: Archive, here: str) -> None:
    assert "textarea" in {tag for tag, _ in (await browser.open(f"{here}/restore")).tags}
    ids = archive.in_archive()[:2]
    asked = await browser.open(f"{here}/restore", kind="outbox", ids=f"{ids[0]}\r\n\r\n{ids[1]} ", type="")
    assert " 2 events " in asked.text
    assert archive.in_table() == []
    done = await browser.send(f"{here}/restore", [*asked.fields, ("note", "asked for")])
    assert done.outcome == ("2", "0")
    assert "audit log" in done.text
    assert archive.in_table() == sorted(ids)
    assert query(archive.url, "SELECT note FROM audit_log ORDER BY id DESC")[0]["note"] == "asked for"
    again = await browser.send(f"{here}/restore", asked.fields)
    assert "Restore" in again.text
    assert again.data("deed") == str(query(archive.url, "SELECT max(id) AS id FROM audit_log")[0]["id"])
    every = await browser.open(f"{here}/restore", kind="outbox", all="1")
    assert (await browser.send(f"{here}/restore", every.fields)).outcome == ("3", "0")
    nothing = await browser.open(f"{here}/restore", kind="tasks", all="1")
    assert [found for _, found in nothing.tags if found.get("role") == "status"]


async def test_events_are_published_once_more(browser: Browser, archive: Archive, here: str) -> None:
    asked = await browser.open(f"{here}/replay", subject="*.event.>", since="400d", until="90d")
    assert " 5 events " in asked.text
    assert "subject=*.event.>" in asked.text
    assert (await browser.send(f"{here}/replay", asked.fields)).outcome == ("5", "0")
    rows = query(archive.url, "SELECT generation, published_at IS NULL AS waits FROM outbox_events")
    assert rows == [{"generation": 1, "waits": True}] * 5
    entries = archive.audit()
    assert (await browser.send(f"{here}/replay", asked.fields)).data("deed") is not None
    assert archive.audit() == entries
    assert entries[-1]["action"] == "outbox.replay"


async def test_a_form_that_does_not_do_says_why_and_keeps_what_was_said(browser: Browser, here: str) -> None:
    for said, told in (
        ({"subject": "a..b", "key": "k"}, "subject : "),
        ({"since": "long ago", "key": "k"}, "2026-01-31T03:00Z"),
        ({"all": "1", "key": "k"}, "say which, in one way"),
        ({"key": "k", "type": " ", "ids": "1"}, "say which, in one way"),
        ({"ids": "\n".join(map(str, range(101))), "key": "k"}, "relay archive replay"),
        ({"kind": "inbox", "key": "k"}, "kind : "),
        ({"nonsense": "1", "key": "k"}, "nonsense : "),
    ):
        page = await browser.open(f"{here}/replay", 422, **said)
        assert told in page.text
        [key] = [found for tag, found in page.tags if found.get("name") == "key"]
        assert key["value"] == "k"
    assert "say which, in one way" in (await browser.open(f"{here}/restore?kind=inbox&key=", 422)).text
    assert "selection" in (await browser.send(f"{here}/restore", [("kind", "inbox")], 422)).text
    assert "UNKNOWN_CONTEXT" in (await browser.open("/contexts/none/archive/replay", 404)).text


@pytest.mark.parametrize("limits", [OpsLimits(rows=4)], ids=["few"])
async def test_what_is_too_much_is_not_begun_and_the_command_is_named(
    browser: Browser, archive: Archive, here: str
) -> None:
    context = archive.relay.context
    for verb, more in (("restore", "--type vibe_created --kind outbox"), ("replay", "--type vibe_created")):
        command = f"or run: relay archive {verb} --context {context} {more}"
        page = await browser.open(f"{here}/{verb}", 409, type="vibe_created")
        assert {"5", "4"} <= {*page.text.split()}
        assert command in page.text
        await browser.send(f"{here}/{verb}", [TYPE], 422)
    assert archive.in_table() == []


def changed(settings: Settings, archive: Archive, **more: Any) -> Settings:
    """The settings with other users, or with one more context."""
    context = {"database_url": archive.url, "archive": {"after": "90d", "directory": str(archive.root)}}
    contexts = {archive.relay.context: context, **more.pop("contexts", {})}
    return Settings.model_validate(
        {"nats_url": settings.nats_url, "redis_url": settings.redis_url, "contexts": contexts, **more}
    )


@pytest.mark.parametrize("verb", ["restore", "replay"])
def test_the_command_that_is_named_can_be_given_as_it_is(verb: Literal["restore", "replay"]) -> None:
    said = {"subject": "a.>", "type": "t", "key": "it's k", "correlation_id": "c", "since": "9d", "until": "1d"}
    for which in ([*said.items()], [("ids", "-1\n2")], [("all", "1")]):
        hint = console._choose("land", verb, which).too_many("").hint or ""
        _, _, name, *words = shlex.split(hint.partition("or run: ")[2])
        command = typer.main.get_group(archive_commands).commands[name]
        read = command.make_context(name, words).params
        assert (read["context"], read["everything"]) == ("land", which == [("all", "1")])
        assert [*read["ids"]] == (["-1", "2"] if which[0][0] == "ids" else [])
        assert which[0][0] != "subject" or (read["key"], read["correlation"], read["type"]) == ("it's k", "c", "t")


async def test_a_replay_warns_of_consumers_that_have_forgotten(
    archive: Archive, settings: Settings, here: str
) -> None:
    stream = settings.contexts[archive.relay.context].event_streams[0].name
    subscription = {"stream": stream, "filter_subject": "up.>", "handler": "http://127.0.0.1:9/handle"}
    cold = {"after": "90d", "keep": "180d", "directory": str(archive.root)}
    land = {"database_url": archive.url, "archive": cold, "subscriptions": {"billing": subscription}}
    async with serving(changed(settings, archive, contexts={"land": land})) as api:
        browser = Browser(api.client)
        told = "land deletes its archive after 180d"
        assert told in (await browser.open(f"{here}/replay", all="1")).text
        assert told not in (await browser.open(f"{here}/restore", all="1")).text


async def test_who_may_only_read_sees_no_button_and_is_refused(
    archive: Archive, settings: Settings, here: str
) -> None:
    async with serving(changed(settings, archive, ops={"users": USERS})) as api:
        reader, operator = Browser(api.client, "reader"), Browser(api.client, "operator")
        assert f"{here}/restore" in (await operator.open(here)).links
        page = await reader.open(here)
        assert "3 batches" in page.text
        assert not [link for link in page.links if link.startswith(f"{here}/")]
        assert "checkbox" not in page.html
        foreign = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
        for verb in ("verify", "restore", "replay"):
            assert "NOT_ALLOWED" in (await reader.open(f"{here}/{verb}?all=1", 403)).text
            assert "NOT_ALLOWED" in (await reader.send(f"{here}/{verb}", [("all", "1")], 403)).text
            await operator.send(f"{here}/{verb}", [("all", "1")], 403, foreign)
        assert archive.in_table() == []


async def test_a_context_without_an_archive_says_so(guarded: Browser) -> None:
    operator = Browser(guarded.client, "operator")
    assert "ARCHIVE_OFF" in (await operator.send("/contexts/sea/archive/verify", [], 404)).text
    for verb in ("restore", "replay"):
        assert "ARCHIVE_OFF" in (await operator.open(f"/contexts/sea/archive/{verb}?all=1", 404)).text
