"""The console in a browser when figures are old: a database that is down or hangs; selections; two people."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from chaos.proxy import Link, Proxy, at_port
from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from relay.settings import Settings
from tests.integration.console_rows import fill
from tests.integration.publishing import query
from tests.integration.test_console_browser import listening
from tests.waiting import DEADLINE_S

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")
LETTERS = "/contexts/sea/dead-letters"
OLD = re.compile(r"Data of \d\d:\d\d:\d\d UTC, \d+ (s|min) old\. .+")
expect.set_options(timeout=DEADLINE_S * 1000)


@dataclass
class Desk:
    """A console whose database is behind a link, and that database."""

    base: str
    link: Link
    url: str
    browser: Browser

    def page(self, **more: Any) -> Page:
        page = self.browser.new_page(viewport={"width": 1280, "height": 800}, base_url=self.base, **more)
        page.set_default_timeout(DEADLINE_S * 1000)
        return page

    def letter(self) -> int:
        """A new dead letter."""
        sql = (
            "INSERT INTO dead_letters (message_id, subscription, subject, class, reason)"
            " VALUES (gen_random_uuid(), 'billing', 'a.b', 'poison', 'HTTP 422: new') RETURNING id"
        )
        return int(query(self.url, sql)[0]["id"])

    def resolve(self, id: str | None) -> None:
        query(self.url, f"UPDATE dead_letters SET status = 'resolved' WHERE id = {id} RETURNING id")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def desk(
    database_url: str, postgres: PostgresServer, nats_server: NatsServer, valkey: ValkeyServer, browser: Browser
) -> Iterator[Desk]:
    fill(database_url, database_url)
    billing = {"stream": "SEA_EVENTS", "filter_subject": "sea.event.>", "handler": "http://127.0.0.1:9/handle"}
    with Proxy() as proxy:
        link = proxy.link("console-postgres", postgres.port)
        sea = {"database_url": at_port(database_url, link.port), "subscriptions": {"billing": billing}}
        servers = {"nats_url": nats_server.url, "redis_url": valkey.url}
        with listening(Settings.model_validate({"contexts": {"sea": sea}, **servers})) as base:
            yield Desk(base, link, database_url, browser)
            link.heal()


@pytest.mark.parametrize("fault", ["cut", "black_hole"])
def test_a_list_says_that_its_database_is_away_and_goes_on_when_it_is_back(desk: Desk, fault: str) -> None:
    page = desk.page()
    page.goto(LETTERS)
    live, band = page.locator("#pause .text"), page.locator("#band")
    expect(live).to_have_text("Live")
    getattr(desk.link, fault)()
    expect(band).to_have_text(OLD)
    expect(live).to_have_text("Not live")
    desk.letter()
    desk.link.heal()
    expect(band).to_be_hidden()
    expect(live).to_have_text("Live")
    expect(page.locator(".count b")).to_have_text("20 dead letters")
    page.close()


def test_the_overview_says_how_old_the_figures_of_a_context_are_whose_database_hangs(desk: Desk) -> None:
    page = desk.page()
    page.goto("/")
    card = page.locator("section.context")
    expect(card.locator(".asof")).to_have_text(re.compile(r"As of [-\d]+ [:\d]+ UTC$"))
    desk.link.black_hole()
    expect(page.locator("#live .band")).to_contain_text("does not answer; its figures are")
    expect(card.locator(".asof.wrong")).to_contain_text("old")
    desk.link.heal()
    expect(page.locator("#live .band")).to_have_count(0)
    page.close()


def test_the_page_of_an_error_comes_back_by_itself(desk: Desk) -> None:
    desk.link.cut()
    page = desk.page()
    page.goto(LETTERS)
    expect(page.get_by_role("heading", level=1)).to_have_text("A server does not answer")
    desk.link.heal()
    expect(page.get_by_role("heading", level=1)).to_have_text("Dead letters")
    page.close()


def test_ticked_rows_stay_ticked_by_their_ids_while_the_list_goes_on(desk: Desk) -> None:
    page = desk.page()
    page.goto(LETTERS)
    boxes = page.locator("tbody input[name=ids]")
    kept, gone = (boxes.nth(n).get_attribute("value") for n in (0, 3))
    for id in (kept, gone):
        page.locator(f"tbody input[value='{id}']").check()
    for _ in range(2):
        desk.letter()
    expect(page.locator(".count b")).to_have_text("21 dead letters")
    assert boxes.nth(0).get_attribute("value") != kept
    assert ticked(page) == [kept, gone]
    desk.resolve(gone)
    expect(page.locator("#updated")).to_have_text("1 of 2 selected rows is not on this page any more.")
    assert ticked(page) == [kept]
    expect(page.locator("#selected")).to_have_text("1 selected:")
    expect(page.locator("#pause .text")).to_have_text("Live")
    page.close()


def test_a_ticked_row_that_newer_ones_push_to_the_next_page_stays_selected(desk: Desk) -> None:
    page = desk.page()
    page.goto(f"{LETTERS}?limit=10")
    boxes = page.locator("tbody input[name=ids]")
    gone, pushed = (it.get_attribute("value") for it in (boxes.first, boxes.last))
    for id in (gone, pushed):
        page.locator(f"tbody input[value='{id}']").check()
    desk.letter()
    expect(page.locator("#selected")).to_have_text("2 selected, 1 on other pages:")
    desk.resolve(gone)
    expect(page.locator("#selected")).to_have_text("1 selected:")
    assert ticked(page) == [pushed]
    page.close()


def ticked(page: Page) -> list[str]:
    found = "boxes => boxes.filter(it => it.checked).map(it => it.value)"
    values: list[str] = page.locator("tbody input[name=ids]").evaluate_all(found)
    return values


def test_a_list_goes_on_after_something_was_copied(desk: Desk) -> None:
    page = desk.page()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(LETTERS)
    page.locator("tbody [data-copy]").first.click()
    expect(page.locator("#updated")).to_have_text("Copied.")
    desk.letter()
    expect(page.locator(".count b")).to_have_text("20 dead letters")
    expect(page.locator("#updated")).to_have_text("")
    page.close()


def test_two_people_see_each_others_deeds_and_act_on_what_is_left(desk: Desk) -> None:
    one, other = desk.page(), desk.page()
    for page in (one, other):
        page.goto(LETTERS)
    ids = [one.locator("tbody input[name=ids]").nth(n).get_attribute("value") for n in range(2)]
    for id in ids:
        one.locator(f"tbody input[value='{id}']").check()
    other.goto(f"{LETTERS}/resolve?ids={ids[1]}")
    other.locator("input[name=note]").fill("booked by hand")
    other.keyboard.press("Enter")
    expect(one.locator("#selected")).to_have_text("1 selected:")
    one.get_by_role("button", name="Requeue…").first.click()
    expect(one.get_by_role("dialog", name="Requeue 1 dead letter?")).to_be_visible()
    for page in (one, other):
        page.close()


def test_ages_on_the_page_of_a_row_go_on(desk: Desk) -> None:
    page = desk.page()
    page.clock.install()
    page.goto(f"{LETTERS}/show?id=1")
    age = page.locator("time[data-ago]").first
    before = age.inner_text()
    page.clock.run_for(3_600_000)
    expect(age).not_to_have_text(before)
    assert re.fullmatch(r"\d+ (h|min|d) ago", age.inner_text())
    page.close()
