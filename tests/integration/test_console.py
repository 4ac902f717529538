"""The web console: what its pages show, and what its forms do, on real servers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from relay.settings import Settings
from tests.integration.console_pages import Browser, Page
from tests.integration.console_rows import BITE, bite, fill, fill_more, number
from tests.integration.ops_api import configured, serving
from tests.integration.publishing import query
from tests.unit.ops_support import USERS
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

LETTERS = "/contexts/land/dead-letters"
EVENTS = "/contexts/sea/events"
TASKS = "/contexts/sea/tasks"


@pytest.fixture
def land(postgres: PostgresServer, administrator: Any, database_template: str) -> Iterator[str]:
    """The database of a second context."""
    administrator.execute(f"CREATE DATABASE land TEMPLATE {database_template} STRATEGY FILE_COPY".encode())
    yield postgres.url_of("land")
    administrator.execute(b"DROP DATABASE land WITH (FORCE)")


@pytest.fixture
async def browser(
    database_url: str, land: str, nats_server: NatsServer, valkey: ValkeyServer
) -> AsyncIterator[Browser]:
    """The console as a browser of this machine asks it, with rows in two contexts."""
    fill(database_url, land)
    fill_more(land)
    billing = {"stream": "SEA_EVENTS", "filter_subject": "sea.event.>", "handler": "http://127.0.0.1:9/handle"}
    contexts = {
        "sea": {"database_url": database_url},
        "land": {"database_url": land, "subscriptions": {"billing": billing}},
    }
    servers = {"nats_url": nats_server.url, "redis_url": valkey.url}
    settings = Settings.model_validate({"contexts": contexts, **servers})
    async with serving(settings) as api:
        yield Browser(api.client)


@pytest.fixture
async def guarded(database_url: str, nats_server: NatsServer, valkey: ValkeyServer) -> AsyncIterator[Browser]:
    """The console with users."""
    async with serving(configured(database_url, nats_server.url, valkey.url, ops={"users": USERS})) as api:
        yield Browser(api.client)


def ways() -> list[str]:
    """Every page that shows something of a context."""
    shown = [
        f"{EVENTS}/show?id={number('dead')}",
        f"{LETTERS}/show?id=1",
        f"{TASKS}/show?id={number('task-failed')}",
    ]
    whole = [
        "/",
        "/doctor",
        "/doctor?part=true",
        f"/explain?id={number('first')}",
        "/streams",
        "/queues",
        "/fleet",
    ]
    rest = [f"/contexts/land/{name}" for name in ("inbox", "parked", "schedule", "archive", "audit")]
    rest += [f"/contexts/land/archive/{name}" for name in ("verify", "restore", "replay")]
    return [*whole, EVENTS, LETTERS, TASKS, *shown, *rest, "/queues/jobs?queue=relay-publish"]


def told(browser: Browser, text: str) -> Any:
    """Whether the overview says something."""

    async def says() -> bool:
        return text in (await browser.open("/")).text

    return says


def harmless(page: Page) -> None:
    """Nothing of a page runs or comes from elsewhere: all scripts, styles and links are ours, and of files."""
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert (page.headers["x-frame-options"], page.headers["cache-control"]) == ("DENY", "no-store")
    for tag, found in page.tags:
        assert not [name for name in found if name.startswith("on") or name in ("style", "srcdoc")], (tag, found)
        for name in ("href", "src", "action", "formaction", "hx-get"):
            assert (found.get(name) or "/").startswith(("/", "#")), (tag, found)
            assert not (found.get(name) or "/").startswith("//")
    assert all(found.get("src") for tag, found in page.tags if tag == "script")
    assert "style" not in {tag for tag, _ in page.tags}


async def test_every_page_is_shown_and_nothing_in_it_comes_from_elsewhere(browser: Browser) -> None:
    for way in ways():
        page = await browser.open(way)
        harmless(page)
        assert "secret" not in page.html
        for link in page.links:
            if link.startswith("/static/"):
                assert (await browser.client.get(link)).headers["cache-control"].endswith("immutable")


async def test_the_overview_says_what_waits_where(browser: Browser) -> None:
    page = await browser.open("/")
    assert "sea" in page.text
    assert "Outbox 8 oldest" in page.text
    assert "1 cannot be published" in page.text
    assert "42 ms after the commit" in page.text
    assert "19 wait for you" in page.text
    found = await browser.open("/doctor", part="true")
    assert "<html" not in found.html
    assert "STREAM_MISSING" in found.text
    # Beside fresh figures a part that is renewed seldom says how old it is.
    assert re.search(r"Examined \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", found.text)
    found = await browser.open("/doctor")
    assert "Examined" in found.text
    assert "nobody answers at http://127.0.0.1:9/handle" in found.text
    assert LETTERS in found.links


async def test_a_context_whose_database_is_away_hides_no_other(guarded: Browser, database_url: str) -> None:
    fill(database_url, database_url)
    reader = Browser(guarded.client, "reader")
    page = await reader.open("/")
    assert "Outbox 8 oldest" in page.text
    await eventually("the overview tells the error", told(reader, "DATABASE_UNREACHABLE"))
    assert "quiet could not be asked" in (await reader.open("/explain", id="nothing")).text


async def test_lists_are_filtered_by_their_address_and_paged(browser: Browser) -> None:
    page = await browser.open(f"{EVENTS}?status=dead&error=too_large&since=1h&event_type=")
    assert "1 event fit the filter" in page.text
    assert "PAYLOAD_TOO_LARGE" in page.text
    page = await browser.open(EVENTS, limit="15")
    assert "40 events" in page.text
    seen = set()
    while older := [link for link in page.links if "before=" in link]:
        seen |= {found["value"] for tag, found in page.tags if found.get("name") == "ids"}
        page = await browser.open(older[-1])
    assert len(seen) == 30
    assert "Nothing fits" in (await browser.open(EVENTS, event_type="other")).text


async def test_dead_letters_are_grouped_by_reason(browser: Browser) -> None:
    page = await browser.open(f"{LETTERS}/groups?status=open&before=100")
    harmless(page)
    assert "timeout no answer within the time-out 9 exhausted" in page.text
    [link] = [link for link in page.links if "reason=timeout" in link]
    assert "9 dead letters fit the filter" in (await browser.open(link)).text


async def test_a_deed_of_the_console_makes_the_lists_of_the_api_fresh(browser: Browser) -> None:
    """Asked right after it: an answer of the last second would show the letter as open."""
    path = f"/api/v1{LETTERS}?status=open"
    before = (await browser.client.get(path)).json()["total"]
    await browser.send(f"{LETTERS}/requeue", [("ids", "1")])
    assert (await browser.client.get(path)).json()["total"] == before - 1


async def test_selected_dead_letters_are_requeued_after_a_question(browser: Browser, land: str) -> None:
    page = await browser.open(f"{LETTERS}/requeue", ids=["1", "2"])
    assert "Requeue 2 dead letters?" in page.text
    assert query(land, "SELECT count(*) AS n FROM audit_log WHERE actor = 'local'")[0]["n"] == 0
    done = await browser.send(f"{LETTERS}/requeue", [*page.fields, ("note", "the service is back")])
    assert "Done: 2 dead letters" in done.text
    assert "the service is back" in done.text
    [entry] = query(land, "SELECT actor, action, ids, note FROM audit_log WHERE actor = 'local'")
    assert (entry["actor"], entry["action"], sorted(entry["ids"])) == ("local", "dlq.requeue", ["1", "2"])
    again = await browser.send(f"{LETTERS}/requeue", [("ids", "1")], 409)
    assert "Nothing was done" in again.text
    assert "was requeued already" in again.text
    part = await browser.send(f"{LETTERS}/requeue", [("ids", "1"), ("ids", "3")])
    assert "Done in part: 1 dead letter" in part.text
    assert "the service is back" in (await browser.open(f"{LETTERS}/show", id="1")).text


async def test_all_that_a_filter_finds_is_discarded_with_a_note(browser: Browser, land: str) -> None:
    page = await browser.open(f"{LETTERS}/discard", all="1", reason="timeout", since="1h")
    assert "Discard 9 dead letters?" in page.text
    assert ("reason", "timeout") in page.fields
    asked = await browser.send(f"{LETTERS}/discard", page.fields, 422)
    assert "Say why" in asked.text
    done = await browser.send(f"{LETTERS}/discard", [*asked.fields, ("note", "a test")])
    assert "Done: 9 dead letters" in done.text
    assert query(land, "SELECT count(*) AS n FROM dead_letters WHERE status = 'discarded'")[0]["n"] == 9
    assert "There is nothing to do" in (await browser.open(f"{LETTERS}/discard", all="1", reason="timeout")).text
    late = await browser.send(f"{LETTERS}/discard", [*page.fields, ("note", "late")])
    assert "somebody else was faster" in late.text


@pytest.mark.parametrize(
    ("kind", "action", "one", "undone"),
    [
        (LETTERS, "discard", "1", "It goes to its handler again"),
        (LETTERS, "resolve", "2", "It goes to its handler again"),
        (TASKS, "cancel", str(number("task-0")), "It will be run again"),
    ],
)
async def test_what_gives_up_can_be_undone(
    browser: Browser, kind: str, action: str, one: str, undone: str
) -> None:
    done = await browser.send(f"{kind}/{action}", [("ids", one), ("note", "a slip")])
    [undo] = [it for it in done.links if "?ids=" in it]
    asked = await browser.open(undo)
    again = await browser.send(undo.partition("?")[0], asked.fields)
    assert undone in again.text
    assert not [it for it in again.links if "?ids=" in it]


async def test_many_are_not_undone_by_an_address(browser: Browser, monkeypatch: Any) -> None:
    """It would be too long for a browser. The list finds them by their state."""
    monkeypatch.setattr("relay.ops.console.row_actions._MAX_SHOWN", 8)
    done = await browser.send(f"{LETTERS}/discard", [("all", "1"), ("reason", "timeout"), ("note", "a slip")])
    assert "Done: 9 dead letters" in done.text
    assert not [it for it in done.links if "?ids=" in it]


async def test_events_and_tasks_are_acted_on(browser: Browser, database_url: str) -> None:
    done = await browser.send(f"{EVENTS}/retry", [("all", "1"), ("status", "dead")])
    assert "Done: 1 event It will be tried again" in done.text
    replayed = await browser.send(f"{EVENTS}/replay", [("ids", str(number("published-1")))])
    assert "will be published once more" in replayed.text
    assert "say which published" in (await browser.send(f"{EVENTS}/replay", [("all", "1")], 422)).text
    assert "say which" in (await browser.send(f"{EVENTS}/retry", [], 422)).text
    assert "Done: 1 task" in (await browser.send(f"{TASKS}/retry", [("ids", str(number("task-failed")))])).text
    assert (
        "Done: 3 tasks" in (await browser.send(f"{TASKS}/cancel", [("all", "1"), ("type", "send_invoice")])).text
    )
    actions = [row["action"] for row in query(database_url, "SELECT action FROM audit_log ORDER BY id")]
    assert actions == ["outbox.retry", "outbox.replay", "tasks.retry", "tasks.cancel"]


async def test_a_filter_that_finds_too_many_changes_nothing(browser: Browser, monkeypatch: Any) -> None:
    monkeypatch.setattr("relay.ops.console.row_actions.MOST", 5)
    assert "narrow the filter" in (await browser.open(f"{LETTERS}/requeue", 409, all="1")).text
    assert "narrow" in (await browser.send(f"{LETTERS}/requeue", [("all", "1")], 409)).text
    assert "19 dead letters" in (await browser.open(LETTERS)).text


async def test_the_life_of_a_message_crosses_contexts(browser: Browser, database_url: str) -> None:
    for id, trace in ((number("first"), f"00-{'a' * 32}-{'b' * 16}-01"), (number("invoice"), "no trace of ours")):
        for table, column in (("outbox_events", "headers"), ("task_outbox", "metadata")):
            told = f"UPDATE {table} SET {column} = jsonb_build_object('traceparent', %s::text) WHERE id = %s"
            query(database_url, told, trace, id)
    page = await browser.open("/explain", id=f" {number('first')} ")
    assert page.text.count("a" * 32) == 1
    assert "no trace of ours" not in page.html
    for told in ("event order_placed v1", "in the stream SEA_EVENTS", "delivery billing", "task send_invoice"):
        assert told in page.text
    dots = [found["aria-label"] for tag, found in page.tags if tag == "a" and "aria-label" in found]
    assert len(dots) == 8
    assert dots[0] == "Step 1: event order_placed v1, published"
    assert {"sea", "land"} <= {*page.text.split()}
    missing = await browser.open("/explain", 404, id="nothing")
    assert "no context knows 'nothing'" in missing.text
    assert (await browser.open("/explain", 303)).headers["location"] == "/"


async def test_a_payload_is_shown_when_it_is_asked_for(browser: Browser) -> None:
    for way in (f"{EVENTS}/show?id={number('dead')}", f"{LETTERS}/show?id=1"):
        assert "secret" not in (await browser.open(way)).html
        assert "secret" in (await browser.open(f"{way}&payload=true")).text


async def test_errors_are_pages_that_say_what_to_do(browser: Browser) -> None:
    for path, status, told in (
        ("/contexts/lake/events", 404, "lake"),
        (f"{EVENTS}?since=yesterday", 422, "since"),
        (f"{EVENTS}?colour=red", 422, "colour"),
        (f"{EVENTS}?status=red", 422, "status"),
        (f"{EVENTS}/show?id=nothing", 404, "has no event"),
        (f"{EVENTS}/show", 422, "id"),
        (f"{LETTERS}/show?id=x", 422, "id"),
        (f"{EVENTS}/burn?all=1", 404, "no such page"),
        ("/nowhere", 404, "Not Found"),
    ):
        page = await browser.open(path, status)
        assert told in page.text, page.text
        harmless(page)


async def test_what_rows_hold_is_text_and_nothing_else(browser: Browser, database_url: str, land: str) -> None:
    query(land, "DELETE FROM dead_letters RETURNING id")
    for url, context in ((database_url, "sea"), (land, "land")):
        bite(url)
        number_of_letter = query(url, "SELECT max(id) AS id FROM dead_letters")[0]["id"]
        base = f"/contexts/{context}"
        shown = [
            f"{base}/dead-letters/show?id={number_of_letter}&payload=true",
            f"{base}/tasks/show?id={number('bite')}",
        ]
        for way in (f"{base}/events", f"{base}/dead-letters", f"{base}/tasks", *shown):
            page = await browser.open(way)
            harmless(page)
            assert "<script>alert" not in page.html
            assert "<img src=x" not in page.html
            assert "alert(1)" in page.text
    page = await browser.open(f"{EVENTS}/show", id="javascript:alert(3)")
    harmless(page)
    asked = await browser.open(f"{EVENTS}/retry", ids=["javascript:alert(3)"])
    harmless(asked)
    done = await browser.send(f"{EVENTS}/retry", [("ids", "javascript:alert(3)"), ("note", BITE)])
    harmless(done)
    assert "<script>alert" not in done.html
    filtered = await browser.open(EVENTS, event_type=BITE, since="1d")
    harmless(filtered)
    assert "<script>alert" not in filtered.html
    life = await browser.open("/explain", id=str(number("bite")))
    harmless(life)
    assert "<script>alert" not in life.html


async def test_everybody_sees_and_does_what_the_role_allows(guarded: Browser, database_url: str) -> None:
    refused = await guarded.open("/", 401)
    assert refused.headers["www-authenticate"].startswith("Basic ")
    assert "A token is needed" in refused.text
    fill(database_url, database_url)
    reader, operator = Browser(guarded.client, "reader"), Browser(guarded.client, "operator")
    auditor = Browser(guarded.client, "auditor")
    letters = "/contexts/sea/dead-letters"
    for name, who in (("reader", reader), ("operator", operator)):
        page = await who.open(letters)
        assert ("Requeue" in page.text) is (name == "operator")
        assert name in page.text
        assert "right to see payloads" in (await who.open(f"{letters}/show?id=1")).text
        assert "NO_PAYLOADS" in (await who.open(f"{letters}/show?id=1&payload=true", 403)).text
    assert "secret" in (await auditor.open(f"{letters}/show?id=1&payload=true")).text
    assert "NOT_ALLOWED" in (await reader.open(f"{letters}/requeue?ids=1", 403)).text
    assert "NOT_ALLOWED" in (await reader.send(f"{letters}/requeue", [("ids", "1")], 403)).text
    assert "Done" in (await operator.send(f"{letters}/requeue", [("ids", "1")])).text
    assert [row["actor"] for row in query(database_url, "SELECT actor FROM audit_log")] == ["operator"]
