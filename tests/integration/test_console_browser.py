"""The console in a browser: every page at two widths in two colours, by keyboard, without a finding of axe."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import axe_playwright_python
import psycopg
import pytest
import uvicorn
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from relay.devstack.ports import free_port
from relay.ops.api.app import create_app
from relay.ops.console.overview import Flow, Patient
from relay.settings import Settings
from tests.integration.console_rows import bite, fill, fill_more, number
from tests.integration.publishing import query
from tests.waiting import wait_for

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")
LETTERS = "/contexts/land/dead-letters"
Scheme = Literal["light", "dark"]
SIZES: list[tuple[int, int, Scheme]] = [
    (1280, 800, "light"),
    (1280, 800, "dark"),
    (390, 844, "dark"),
    (360, 740, "light"),
]
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text("utf-8")
ALL = {"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
#: Answers that browsers complain about, and that are right.
ASKED_FOR = ("404 (Not Found)", "422 (Unprocessable")
COLOURS = {**ALL, "runOnly": ["color-contrast"]}
#: Pages that have all the colours there are.
DARK = {"/", LETTERS, f"/explain?id={number('first')}", "/streams", f"{LETTERS}/discard?all=1&reason=timeout"}
PAGES = [
    "/",
    "/doctor",
    "/contexts/sea/events",
    LETTERS,
    "/contexts/sea/tasks",
    f"/contexts/sea/events/show?id={number('dead')}",
    f"{LETTERS}/show?id=1&payload=true",
    f"/contexts/sea/tasks/show?id={number('task-failed')}",
    f"/explain?id={number('first')}",
    f"{LETTERS}/discard?all=1&reason=timeout",
    "/contexts/land/inbox",
    f"/contexts/land/inbox/show?id={number('failing-message')}",
    "/contexts/land/parked",
    "/contexts/land/parked/release?all=1",
    "/contexts/land/replays",
    "/contexts/land/schedule",
    "/contexts/land/archive",
    "/contexts/land/archive/verify",
    "/contexts/land/archive/restore?subject=a..b",
    "/contexts/land/audit",
    "/contexts/land/retention",
    "/persons?subject=c-7&held=1",
    "/persons/forget?subject=c-7",
    "/contexts/land/history",
    "/contexts/land/history?of=subscription&name=billing",
    "/contexts/land/subscriptions/billing",
    "/contexts/land/task-types/send_a_rather_long_mail",
    "/streams",
    "/queues",
    "/fleet",
    "/contexts/land/events?event_type=none",
    "/explain?id=nothing",
]

# A test that moves the clock of a page on may end a request that is under way: the page waits 20 s for it.
TIMED_OUT = "htmx:error: timeout"


@dataclass
class Console:
    """A console that listens, and what browsers complained about."""

    base: str
    land: str
    complaints: list[str] = field(default_factory=list)

    def page(
        self,
        browser: Browser,
        width: int,
        height: int,
        scheme: Scheme,
        *,
        expected: Sequence[str] = (),
        **more: Any,
    ) -> Page:
        """A page whose complaints are kept, but for those with the ``expected`` words.

        Not one of a page that is missing or refuses a form: some do.
        """
        page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme=scheme, base_url=self.base, **more
        )
        page.emulate_media(reduced_motion="reduce")
        page.on("console", lambda it: self._complain(it.type, it.text, *expected))
        page.on("pageerror", lambda it: self._complain("error", str(it)))
        page.on("dialog", lambda it: self._complain("dialog", it.message))
        return page

    def _complain(self, kind: str, text: str, *expected: str) -> None:
        if kind in ("error", "warning", "dialog") and not any(it in text for it in (*ASKED_FOR, *expected)):
            self.complaints.append(text)


@pytest.fixture(scope="module")
def console(
    postgres: PostgresServer,
    administrator: Any,
    database_template: str,
    nats_server: NatsServer,
    valkey: ValkeyServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Console]:
    urls = []
    for name in ("console_sea", "console_land"):
        administrator.execute(f"CREATE DATABASE {name} TEMPLATE {database_template} STRATEGY FILE_COPY".encode())
        urls.append(postgres.url_of(name))
    fill(*urls)
    fill_more(urls[1])
    billing = {"stream": "SEA_EVENTS", "filter_subject": "sea.event.>", "handler": "http://127.0.0.1:9/handle"}
    cold = {"after": "90d", "directory": str(tmp_path_factory.mktemp("cold"))}
    contexts = {
        "sea": {"database_url": urls[0]},
        "land": {"database_url": urls[1], "subscriptions": {"billing": billing}, "archive": cold},
    }
    servers = {"nats_url": nats_server.url, "redis_url": valkey.url}
    with listening(Settings.model_validate({"contexts": contexts, **servers})) as base:
        yield Console(base, urls[1])
    for name in ("console_sea", "console_land"):
        administrator.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def listening(settings: Settings, patience_s: float | None = None) -> Iterator[str]:
    """Serve the console in a thread; its address. ``patience_s``: how long its overview waits for figures."""
    port, app = free_port(), create_app(settings)
    if patience_s is not None:
        state = app._app._app._app.state
        state.flow, state.alarms = Flow(patience_s, old_s=100 * patience_s), Patient(patience_s)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for("it serves", lambda: server.started)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


def settled(page: Page) -> None:
    """Wait until what a page loads apart is there."""
    page.wait_for_load_state("load")
    loading = "[hx-trigger^=load]:not(:has(.pill)):not(:has(li)):not(:has(.empty))"
    page.wait_for_function("wanted => document.querySelector(wanted) === null", arg=loading)


def test_every_page_fits_is_readable_and_complains_of_nothing(console: Console, browser: Browser) -> None:
    page = console.page(browser, *SIZES[0])
    for path in PAGES:
        page.goto(path)
        settled(page)
        page.evaluate(AXE)
        for width, height, scheme in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{path} is {wide} px wide at {width} px"
            rules = {(1280, "light"): ALL, (1280, "dark"): COLOURS if path in DARK else None}.get((width, scheme))
            found = page.evaluate("rules => axe.run(document, rules)", rules)["violations"] if rules else []
            bad = [(it["id"], it["nodes"][0]["html"]) for it in found if it["impact"] in ("serious", "critical")]
            assert not bad, f"{path} at {width} px in {scheme}: {bad}"
    page.close()
    assert console.complaints == []


def test_a_dead_letter_is_found_and_requeued_by_keyboard_alone(console: Console, browser: Browser) -> None:
    page = console.page(browser, 1280, 800, "light")
    page.goto("/")
    for text, address in (
        ("Dead letters 19 wait for you", LETTERS),
        ("timeout no answer", "reason=timeout"),
        ("1", "show?id=1"),
        ("Requeue…", "requeue?ids=1"),
    ):
        settled(page)
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_text("Skip to the content")
        page.keyboard.press("Enter")
        reach(page, text)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{address}*")
    expect(page.locator(":focus")).to_have_attribute("name", "note")
    page.keyboard.type("the service is back")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Requeue: 1 dead letter")
    assert query(console.land, "SELECT note FROM audit_log ORDER BY id DESC")[0]["note"] == "the service is back"
    page.close()
    assert console.complaints == []


def reach(page: Page, text: str) -> None:
    """Press Tab until a link or button whose text begins so has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        focused = page.evaluate("document.activeElement.innerText.replace(/\\s+/g, ' ').trim()")
        if focused == text or (len(text) > 2 and focused.startswith(text)):
            return
    raise AssertionError(f"no Tab leads to {text!r}")


def test_a_deed_is_sent_once_however_often_its_button_is_pressed(console: Console, browser: Browser) -> None:
    page = console.page(browser, 1280, 800, "light")
    sent: list[str] = []
    page.on("request", lambda it: sent.append(it.url) if it.method == "POST" else None)
    page.goto(f"{LETTERS}/requeue?ids=2")
    button = page.locator("form[method=post] button")
    place = button.bounding_box()
    assert place is not None
    with psycopg.connect(console.land) as holder:
        holder.execute("SELECT FROM dead_letters WHERE id = 2 FOR UPDATE")
        page.mouse.click(place["x"] + 9, place["y"] + 9)
        waits = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        wait_for("it waits", lambda: query(console.land, waits))
        for _ in range(2):
            page.mouse.click(place["x"] + 9, place["y"] + 9)
    expect(page.get_by_role("heading", level=1)).to_have_text("Requeue: 1 dead letter")
    assert sent == [f"{console.base}{LETTERS}/requeue"]
    page.go_back()
    expect(button).not_to_have_attribute("aria-disabled", "true")
    page.close()
    assert console.complaints == []


def test_a_list_refreshes_itself_until_it_is_paused(console: Console, browser: Browser) -> None:
    page = console.page(browser, 1280, 800, "light", expected=[TIMED_OUT])
    page.clock.install()
    page.goto(f"{LETTERS}?reason=status_503")
    count = page.locator(".count b")
    expect(count).to_have_text("3 dead letters")
    change = (
        "UPDATE dead_letters SET status = '{}' WHERE id IN (SELECT max(id) FROM dead_letters WHERE reason ~ '503')"
    )
    query(console.land, f"{change.format('resolved')} RETURNING id")

    def refreshed() -> bool:
        """Whether the next refresh shows it. A list may be a second old, in the time of the server."""
        page.clock.run_for(5_100)
        page.wait_for_load_state("networkidle")
        return count.inner_text() == "2 dead letters"

    wait_for("a refresh that shows the change", refreshed)
    asked: list[str] = []
    page.get_by_role("button", name="Live").click()
    page.wait_for_load_state("networkidle")
    page.on("request", lambda it: asked.append(it.url))
    page.clock.run_for(15_000)
    page.reload()
    expect(page.get_by_role("button", name="Paused")).to_be_visible()
    page.clock.run_for(15_000)
    assert [it for it in asked if "?" in it and "static" not in it and "groups" not in it] == [
        f"{console.base}{LETTERS}?reason=status_503"
    ]
    page.close()


def test_a_refresh_under_way_does_not_take_a_selection_away(console: Console, browser: Browser) -> None:
    page = console.page(browser, 1280, 800, "light", expected=[TIMED_OUT])
    page.clock.install()
    page.goto(f"{LETTERS}?reason=status_503")
    late: list[Route] = []
    go_on: list[bool] = []

    def hold(it: Route) -> None:
        it.continue_() if go_on else late.append(it)

    def asked() -> bool:
        page.clock.run_for(5_100)
        return bool(late)

    page.route("**/dead-letters?reason=status_503", hold)
    wait_for("a refresh", asked)
    page.get_by_role("checkbox", name="Select all rows of this page").check()
    selected = page.locator("#selected").inner_text()
    page.evaluate("document.body.addEventListener('htmx:after:swap', () => { window.swapped = true })")
    go_on.append(True)
    for it in late:
        it.continue_()
    wait_for("the new list", lambda: page.evaluate("window.swapped === true"))
    expect(page.locator("#selected")).to_have_text(selected)
    expect(page.locator("tbody tr").first.get_by_role("checkbox")).to_be_checked()
    page.close()


def test_an_act_is_asked_in_a_dialog_told_in_a_note_and_undone_there(console: Console, browser: Browser) -> None:
    page = console.page(browser, 1280, 800, "light")
    page.goto(f"{LETTERS}?reason=timeout")
    before = page.url
    total = page.locator(".count").get_attribute("data-total")
    closed = "SELECT count(*) AS n FROM dead_letters WHERE status = 'discarded'"
    page.locator("tbody input[name=ids]").nth(0).check()
    page.locator("tbody input[name=ids]").nth(1).check()
    page.locator("button[data-selected]", has_text="Discard…").click()
    dialog = page.get_by_role("dialog", name="Discard 2 dead letters?")
    expect(dialog.locator("[name=note]")).to_be_focused()
    page.evaluate(AXE)
    assert page.evaluate("rules => axe.run(document, rules)", ALL)["violations"] == []
    page.keyboard.type("a slip")
    page.keyboard.press("Enter")
    note = page.locator("#toast")
    expect(note).to_contain_text("Discard: 2 dead letters")
    expect(dialog).to_be_hidden()
    expect(page.locator(".count")).to_have_attribute("data-total", str(int(total or 0) - 2))
    assert (page.url, query(console.land, closed)[0]["n"]) == (before, 2)
    note.get_by_role("button", name="Undo").click()
    expect(note).to_contain_text("Reopen: 2 dead letters")
    expect(page.locator(".count")).to_have_attribute("data-total", total or "")
    assert (page.url, query(console.land, closed)[0]["n"]) == (before, 0)
    # A whole filter is asked about with its reasons; Escape leaves it.
    page.goto(LETTERS)
    page.get_by_role("link", name="Discard…").click()
    expect(page.locator("dialog .why")).to_contain_text("timeout")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    assert page.url.endswith(LETTERS)
    page.close()
    assert console.complaints == []


def test_keys_go_through_a_list_and_ticks_stay_from_page_to_page(console: Console, browser: Browser) -> None:
    page = console.page(browser, 1280, 800, "light")
    page.goto("/contexts/sea/events?limit=10")
    for key in ("j", "j", "x", "k", "x"):
        page.keyboard.press(key)
    expect(page.locator("tbody input:checked")).to_have_count(2)
    ticked = {it.get_attribute("value") for it in page.locator("tbody input:checked").all()}
    page.get_by_role("link", name="Older").click()
    expect(page.locator("#selected")).to_have_text("2 selected, 2 on other pages:")
    page.locator("tbody input[name=ids]").first.check()
    page.locator("button[data-selected]", has_text="Retry…").click()
    expect(page.get_by_role("dialog", name="Retry 3 events?")).to_be_visible()
    page.get_by_role("link", name="Cancel").click()
    page.get_by_role("link", name="Newer").click()
    found = {it.get_attribute("value") for it in page.locator("tbody input:checked").all()}
    assert found == ticked
    page.get_by_role("button", name="Select none").click()
    expect(page.locator("#selected")).to_have_text("Selected rows:")
    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/events/show?id=*")
    page.close()
    assert console.complaints == []


def test_a_view_is_kept_under_a_name_and_forgotten(console: Console, browser: Browser) -> None:
    context = browser.new_context(base_url=console.base, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    filtered = f"{LETTERS}?reason=timeout&status=open"
    page.goto(filtered)
    page.get_by_role("button", name="Keep this view…").click()
    name = page.get_by_role("dialog", name="Keep this view").get_by_label("Name")
    expect(name).to_be_focused()
    name.fill("Timeouts <b>")
    page.evaluate(AXE)
    assert not page.evaluate("rules => axe.run(document, rules)", ALL)["violations"]
    name.press("Enter")
    kept = page.get_by_role("navigation", name="Pages").get_by_role("link", name="Timeouts <b>")
    expect(kept).to_have_attribute("aria-current", "page")
    page.goto("/")
    kept.click()
    page.wait_for_url(f"**{filtered}")
    other = context.new_page()
    other.goto("/")
    page.get_by_role("button", name="Forget the view Timeouts <b>").click()
    for it in (page, other):
        expect(it.locator("nav .view")).to_have_count(0)
    page.evaluate("localStorage.setItem('views', '{broken')")
    page.goto(filtered)
    page.get_by_role("button", name="Keep this view…").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    context.close()


def test_times_are_of_here_with_utc_beside_and_a_phone_folds_the_filter(
    console: Console, browser: Browser
) -> None:
    page = console.page(browser, 390, 844, "light", timezone_id="America/New_York")
    page.goto(LETTERS)
    time = page.locator("tbody time").first
    assert "America/New_York" in (time.get_attribute("title") or "")
    page.get_by_role("button", name="Times").click()
    told, utc = page.evaluate(
        "() => { const it = document.querySelector('tbody time'); return [it.textContent, it.dateTime]; }"
    )
    there = datetime.fromisoformat(utc).astimezone(ZoneInfo("America/New_York"))
    assert told == f"{there:%Y-%m-%d %H:%M:%S}"
    field_ = page.get_by_label("Subscription")
    expect(field_).to_be_hidden()
    page.get_by_text("Filter", exact=True).first.click()
    expect(field_).to_be_visible()
    plain = console.page(browser, 390, 844, "light", java_script_enabled=False)
    plain.goto(LETTERS)
    expect(plain.get_by_label("Subscription")).to_be_visible()
    plain.close()
    page.close()
    assert console.complaints == []


def test_without_scripts_pages_lead_back_as_they_led_on(console: Console, browser: Browser) -> None:
    page = console.page(browser, 1280, 800, "light", java_script_enabled=False)
    page.goto("/contexts/sea/events?limit=10")
    seen = []
    for _ in range(3):
        seen.append(page.locator("tbody tr").first.get_attribute("id"))
        page.get_by_role("link", name="Older").click()
    for expected in seen[::-1]:
        page.get_by_role("link", name="Newer").click()
        assert page.locator("tbody tr").first.get_attribute("id") == expected
    expect(page.get_by_role("link", name="Newer")).to_have_count(0)
    page.close()


def test_the_cursor_begins_in_the_field_that_must_be_filled(console: Console, browser: Browser) -> None:
    page = console.page(browser, 1280, 800, "light")
    for path, field_ in (("snooze?ids=1", "for"), ("discard?ids=1", "note"), ("wake?ids=1", "note")):
        page.goto(f"{LETTERS}/{path}")
        expect(page.locator(":focus")).to_have_attribute("name", field_)
    page.close()


def test_colours_are_chosen_and_kept_and_pages_work_without_scripts(console: Console, browser: Browser) -> None:
    page = console.page(browser, 1280, 800, "light")
    page.goto("/contexts/sea/tasks")
    ground = "getComputedStyle(document.body).backgroundColor"
    bright = page.evaluate(ground)
    for _ in range(2):
        page.get_by_role("button", name="Colours").click()
    assert page.evaluate(ground) != bright
    page.reload()
    assert page.evaluate(ground) != bright
    plain = console.page(browser, 1280, 800, "light", java_script_enabled=False)
    plain.goto("/contexts/sea/events")
    plain.get_by_role("checkbox", name="Select event").first.check()
    plain.get_by_role("button", name="Retry…").click()
    expect(plain.get_by_role("heading", level=1)).to_have_text("Retry 1 event?")
    plain.close()
    page.close()


def test_what_an_attacker_has_stored_does_not_run(console: Console, browser: Browser) -> None:
    ids = bite(console.land)
    page = console.page(browser, 1280, 800, "light")
    for path in ("events", "dead-letters", "tasks", "events/show?id=javascript:alert(3)"):
        page.goto(f"/contexts/land/{path}")
        settled(page)
    page.goto(f"/explain?id={ids['message']}")
    settled(page)
    assert page.locator("img:not(.brand img)").count() == 0
    page.close()
    assert console.complaints == []
