"""The web console: what its pages show, and what its forms do, on real servers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import Any, Literal

import pytest

from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from relay.ops.api.common import OpsLimits
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
def limits() -> OpsLimits:
    """Those of the console. A test may have others."""
    return OpsLimits()


@pytest.fixture
async def browser(
    database_url: str, land: str, nats_server: NatsServer, valkey: ValkeyServer, limits: OpsLimits
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
    async with serving(settings, limits=limits) as api:
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
    rest = [f"/contexts/land/{name}" for name in ("inbox", "parked", "replays", "schedule", "archive", "audit")]
    rest += ["/contexts/land/history", "/contexts/land/history?of=subscription&name=billing"]
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
    assert {"HANDLER_UNREACHABLE", "http://127.0.0.1:9/handle:"} <= {*found.text.split()}
    assert LETTERS in found.links


async def test_a_context_whose_database_is_away_hides_no_other(guarded: Browser, database_url: str) -> None:
    fill(database_url, database_url)
    reader = Browser(guarded.client, "reader")
    page = await reader.open("/")
    assert "Outbox 8 oldest" in page.text
    await eventually("the overview tells the error", told(reader, "DATABASE_UNREACHABLE"))
    assert "quiet could not be asked" in (await reader.open("/explain", id="nothing")).text


def rows(page: Page) -> list[str | None]:
    """The ids of the rows that a list shows."""
    return [found["value"] for _, found in page.tags if found.get("name") == "ids"]


def turn(page: Page, way: Literal["next", "prev"]) -> str | None:
    """The address to which the button Older or Newer leads; None: there is no such button."""
    return next((found["href"] for _, found in page.tags if found.get("rel") == way), None)


async def test_lists_are_filtered_by_their_address_and_paged(browser: Browser) -> None:
    page = await browser.open(f"{EVENTS}?status=dead&error=too_large&since=1h&event_type=")
    assert page.data("total") == "1"
    assert "PAYLOAD_TOO_LARGE" in page.text
    page = await browser.open(EVENTS, limit="15")
    assert page.data("total") == "40"
    pages = [rows(page)]
    while older := turn(page, "next"):
        page = await browser.open(older)
        pages.append(rows(page))
    assert [len(ids) for ids in pages] == [15, 15, 10]
    assert len({*chain(*pages)}) == 40
    back = [pages.pop()]
    while newer := turn(page, "prev"):
        page = await browser.open(newer)
        back.append(rows(page))
    assert back[1:] == pages[::-1]
    assert (await browser.open(EVENTS, event_type="other")).data("total") is None


async def test_dead_letters_are_grouped_by_reason(browser: Browser) -> None:
    page = await browser.open(f"{LETTERS}/groups?status=open&before=100")
    harmless(page)
    assert re.search(r"\btimeout\b.* 9 exhausted", page.text)
    [link] = [link for link in page.links if "reason=timeout" in link]
    assert (await browser.open(link)).data("total") == "9"


async def test_forged_letters_are_a_link_to_them(browser: Browser, land: str) -> None:
    total = (await browser.open(LETTERS)).data("total")
    query(
        land,
        "INSERT INTO dead_letters (message_id, subject, class, reason)"
        " SELECT gen_random_uuid(), 's', 'unconfirmed', 'unconfirmed: x' FROM generate_series(1, 700)"
        " RETURNING id",
    )
    page = await browser.open(LETTERS, limit="20")
    harmless(page)
    assert "700 unconfirmed letters" in page.text
    assert page.data("total") == total
    [link] = [link for link in page.links if "class=unconfirmed" in link]
    assert (await browser.open(link)).data("total") == "700"


async def test_a_deed_of_the_console_makes_the_lists_of_the_api_fresh(browser: Browser) -> None:
    """Asked right after it: an answer of the last second would show the letter as open."""
    path = f"/api/v1{LETTERS}?status=open"
    before = (await browser.client.get(path)).json()["total"]
    await browser.send(f"{LETTERS}/requeue", [("ids", "1")])
    assert (await browser.client.get(path)).json()["total"] == before - 1


async def test_selected_dead_letters_are_requeued_after_a_question(browser: Browser, land: str) -> None:
    page = await browser.open(f"{LETTERS}/requeue", ids=["1", "2"])
    assert page.data("count") == "2"
    assert query(land, "SELECT count(*) AS n FROM audit_log WHERE actor = 'local'")[0]["n"] == 0
    done = await browser.send(f"{LETTERS}/requeue", [*page.fields, ("note", "the service is back")])
    assert done.outcome == ("2", "0")
    assert "the service is back" in done.text
    [entry] = query(land, "SELECT actor, action, ids, note FROM audit_log WHERE actor = 'local'")
    assert (entry["actor"], entry["action"], sorted(entry["ids"])) == ("local", "dlq.requeue", ["1", "2"])
    again = await browser.send(f"{LETTERS}/requeue", [("ids", "1")], 409)
    assert again.outcome == ("0", "1")
    assert "INCIDENT_CLOSED" in again.text
    part = await browser.send(f"{LETTERS}/requeue", [("ids", "1"), ("ids", "3")])
    assert part.outcome == ("1", "1")
    assert "the service is back" in (await browser.open(f"{LETTERS}/show", id="1")).text


async def test_all_that_a_filter_finds_is_discarded_with_a_note(browser: Browser, land: str) -> None:
    page = await browser.open(f"{LETTERS}/discard", all="1", reason="timeout", since="1h")
    assert page.data("count") == "9"
    assert "reason=timeout" in page.text
    asked = await browser.send(f"{LETTERS}/discard", page.fields, 422)
    [note] = [found for _, found in asked.tags if found.get("name") == "note"]
    assert note["aria-invalid"] == "true"
    done = await browser.send(f"{LETTERS}/discard", [*asked.fields, ("note", "a test")])
    assert done.outcome == ("9", "0")
    assert query(land, "SELECT count(*) AS n FROM dead_letters WHERE status = 'discarded'")[0]["n"] == 9
    assert (await browser.open(f"{LETTERS}/discard", all="1", reason="timeout")).data("count") == "0"
    late = await browser.send(f"{LETTERS}/discard", [*page.fields, ("note", "late")])
    assert (late.outcome, late.data("deed")) == (done.outcome, done.data("deed"))


async def test_events_and_tasks_are_acted_on(browser: Browser, database_url: str) -> None:
    asked = await browser.send(f"{EVENTS}/retry", [("all", "1"), ("status", "dead")], 422)
    assert asked.data("count") == "1"
    done = await browser.send(f"{EVENTS}/retry", asked.fields)
    assert done.outcome == ("1", "0")
    replayed = await browser.send(f"{EVENTS}/replay", [("ids", str(number("published-1")))])
    assert replayed.outcome == ("1", "0")
    for path, fields in ((f"{EVENTS}/replay", [("all", "1")]), (f"{EVENTS}/retry", [])):
        assert "INVALID_REQUEST" in (await browser.send(path, fields, 422)).text
    retried = await browser.send(f"{TASKS}/retry", [("ids", str(number("task-failed")))])
    assert retried.outcome == ("1", "0")
    counted = await browser.open(f"{TASKS}/cancel", all="1", type="send_invoice")
    cancelled = await browser.send(f"{TASKS}/cancel", counted.fields)
    assert cancelled.outcome == ("3", "0")
    actions = [row["action"] for row in query(database_url, "SELECT action FROM audit_log ORDER BY id")]
    assert actions == ["outbox.retry", "outbox.replay", "tasks.retry", "tasks.cancel"]


@pytest.mark.parametrize("limits", [OpsLimits(rows=5)], ids=["few"])
async def test_a_filter_that_finds_too_many_changes_nothing(browser: Browser) -> None:
    assert "TOO_MANY" in (await browser.open(f"{LETTERS}/requeue", 409, all="1")).text
    assert "TOO_MANY" in (await browser.send(f"{LETTERS}/requeue", [("all", "1")], 409)).text
    assert (await browser.open(LETTERS)).data("total") == "19"


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
    assert "UNKNOWN_ID" in missing.text
    assert (await browser.open("/explain", 303)).headers["location"] == "/"


async def test_a_payload_is_shown_when_it_is_asked_for(browser: Browser) -> None:
    for way in (f"{EVENTS}/show?id={number('dead')}", f"{LETTERS}/show?id=1"):
        assert "secret" not in (await browser.open(way)).html
        assert "secret" in (await browser.open(f"{way}&payload=true")).text


async def test_errors_are_pages_that_say_what_to_do(browser: Browser) -> None:
    for path, status, expected in (
        ("/contexts/lake/events", 404, "UNKNOWN_CONTEXT"),
        (f"{EVENTS}?since=yesterday", 422, "since"),
        (f"{EVENTS}?colour=red", 422, "colour"),
        (f"{EVENTS}?status=red", 422, "status"),
        (f"{EVENTS}/show?id=nothing", 404, "NOTHING_FOUND"),
        (f"{EVENTS}/show", 422, "id"),
        (f"{LETTERS}/show?id=x", 422, "id"),
        (f"{EVENTS}/burn?all=1", 404, "NOTHING_FOUND"),
        ("/nowhere", 404, "404"),
    ):
        page = await browser.open(path, status)
        assert expected in page.text, page.text
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
    fill(database_url, database_url)
    reader, operator = Browser(guarded.client, "reader"), Browser(guarded.client, "operator")
    auditor = Browser(guarded.client, "auditor")
    letters = "/contexts/sea/dead-letters"
    for name, who in (("reader", reader), ("operator", operator)):
        page = await who.open(letters)
        assert ("Requeue" in page.text) is (name == "operator")
        assert name in page.text
        assert not [it for it in (await who.open(f"{letters}/show?id=1")).links if "payload" in it]
        assert "NO_PAYLOADS" in (await who.open(f"{letters}/show?id=1&payload=true", 403)).text
    assert "secret" in (await auditor.open(f"{letters}/show?id=1&payload=true")).text
    assert "NOT_ALLOWED" in (await reader.open(f"{letters}/requeue?ids=1", 403)).text
    assert "NOT_ALLOWED" in (await reader.send(f"{letters}/requeue", [("ids", "1")], 403)).text
    assert (await operator.send(f"{letters}/requeue", [("ids", "1")])).outcome == ("1", "0")
    assert [row["actor"] for row in query(database_url, "SELECT actor FROM audit_log")] == ["operator"]
