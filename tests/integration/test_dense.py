"""The dense overview: fifty contexts on one page, a row for each, what is down or slow first."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Browser, Page, expect

from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from relay.settings import Settings
from tests.integration.console_rows import fill
from tests.integration.test_console_browser import ALL, AXE, browser, listening
from tests.waiting import DEADLINE_S, wait_for

__all__ = ["browser"]
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")
COUNT = 50
#: So high a row may be, and so many must be seen at 1280x800 without scrolling.
HIGH, SEEN = 28, 24
LONG = "l" + "ong_name" * 7 + "_of_64_"
DOWN, ILL = "zz_down", "yy_ill"
#: An hour of minutes with a gap.
RECORDED = """
INSERT INTO history (step, kind, name, at, done, failed, waiting)
SELECT 'minute', kind, name, date_trunc('minute', now()) - n * interval '1 minute', 60 + 40 * (n % 7), n % 5, n
FROM generate_series(1, 60) AS n,
     (VALUES ('outbox', ''), ('subscription', 'billing'), ('task', 'mail')) AS it (kind, name)
WHERE n NOT BETWEEN 20 AND 25
"""


@pytest.fixture(scope="module")
def base(
    postgres: PostgresServer,
    administrator: Any,
    database_template: str,
    nats_server: NatsServer,
    valkey: ValkeyServer,
) -> Iterator[str]:
    """The console of fifty contexts: one has no database, one is ill."""
    databases = ("dense_ill", "dense_well", "dense_fast")
    for name in databases:
        administrator.execute(f"CREATE DATABASE {name} TEMPLATE {database_template} STRATEGY FILE_COPY".encode())
    fill(postgres.url_of("dense_well"), postgres.url_of("dense_ill"))
    ill, well, fast = map(postgres.url_of, databases)
    with psycopg.connect(well) as conn:
        conn.execute("TRUNCATE outbox_events, task_outbox CASCADE")
    for url in (ill, well, fast):
        with psycopg.connect(url) as conn:
            conn.execute(RECORDED)
    billing = {"stream": "SEA_EVENTS", "filter_subject": "sea.event.>", "handler": "http://127.0.0.1:9/handle"}
    contexts: dict[str, Any] = {
        DOWN: {"database_url": "postgresql://127.0.0.1:1/down"},
        ILL: {"database_url": ill, "subscriptions": {"billing": billing}},
    }
    for n in range(COUNT - 3):
        contexts[f"service_{n:02}"] = {"database_url": well if n % 2 else fast}
    contexts[LONG] = {"database_url": fast}
    servers = {"nats_url": nats_server.url, "redis_url": valkey.url, "max_connections": 40}
    # However slow the machine is, figures are of the look that the page has waited for.
    with listening(Settings.model_validate({"contexts": contexts, **servers}), DEADLINE_S / 3) as found:
        yield found
    for name in databases:
        administrator.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def opened(browser: Browser, base: str, width: int, height: int, path: str = "/", **more: Any) -> Page:
    """The overview, when all contexts that answer have answered."""
    page = browser.new_page(viewport={"width": width, "height": height}, base_url=base, **more)
    page.set_default_timeout(DEADLINE_S * 1000)
    # What has been seen stays.
    page.add_init_script("localStorage.setItem('paused', 'yes')")

    def answered() -> bool:
        page.goto(path)
        late = page.locator("tr .pill", has_text="asked").count() + page.locator(".wrong", has_text="yet").count()
        return late == 0 and page.get_by_label("in the last hour").or_(page.locator(".flow")).count() >= COUNT - 1

    wait_for("all have answered", answered)
    return page


def names(page: Page) -> list[str]:
    return page.locator("tbody th").all_inner_texts()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fifty_contexts_are_rows_the_worst_first(browser: Browser, base: str, scheme: Any) -> None:
    page = opened(browser, base, 1280, 800, color_scheme=scheme)
    shown = names(page)
    assert (len(shown), len({*shown})) == (COUNT, COUNT)
    assert shown[:2] == [DOWN, ILL]
    # What is down or ill says so in words, and where it is mended.
    expect(page.locator(f"#context-{DOWN} .pill")).to_have_text("down")
    row = page.locator(f"#context-{ILL}")
    assert re.search(r"\d", row.locator(".says").inner_text())
    expect(row.get_by_label("dead letters")).to_have_text("19")
    high = [it.bounding_box() for it in page.locator("tbody tr").all()]
    assert max(it["height"] for it in high if it) <= HIGH
    assert sum(it["y"] + it["height"] <= 800 for it in high if it) >= SEEN
    # A gap ends a line.
    assert row.locator(".spark").first.locator("polyline").count() == 2
    page.evaluate(AXE)
    assert page.evaluate("rules => axe.run(document, rules)", ALL)["violations"] == []
    page.close()


@pytest.mark.parametrize("width", [360, 390, 1280, 2560])
@pytest.mark.parametrize("path", ["/", "/?view=cards"])
def test_no_form_is_wider_than_its_window(browser: Browser, base: str, width: int, path: str) -> None:
    page = opened(browser, base, width, 844, path)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_a_phone_reads_each_figure_with_its_name(browser: Browser, base: str) -> None:
    page = opened(browser, base, 390, 844)
    row = page.locator(f"#context-{ILL}")
    label = row.locator("td[data-label=Dead]").evaluate("it => getComputedStyle(it, '::before').content")
    assert "Dead" in label
    assert names(page)[0] == DOWN
    page.close()


def test_cards_and_rows_are_chosen_and_hide_no_context(browser: Browser, base: str) -> None:
    page = opened(browser, base, 1280, 800)
    page.get_by_role("link", name="Cards").click()
    expect(page.locator("section.context")).to_have_count(COUNT)
    page.get_by_role("link", name="Rows").click()
    expect(page.locator("tbody tr")).to_have_count(COUNT)
    page.close()
