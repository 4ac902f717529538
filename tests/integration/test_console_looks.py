"""Every page of the console with long and odd names: on a phone, on a desk, on a wall, on paper, and to axe."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import Browser

from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from tests.integration.console_hostile import LONG_CONTEXT, long_named, pages, routes
from tests.integration.test_console_browser import ALL, AXE, Console, browser, listening, settled
from tests.servers import migrated

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="Debian's chromium is not installed")
#: Cells of a table on a phone, where the heads of columns are hidden, whose own head is not shown either.
NAMELESS = """() => [...document.querySelectorAll("td")].filter(it =>
    it.offsetParent && it.innerText.trim() && !it.matches(".tick, [colspan], :has(> .button)")
    && ["none", "normal", '""'].includes(getComputedStyle(it, "::before").content))
    .map(it => it.outerHTML.slice(0, 200))"""
#: Times on paper that say only how long ago they were.
RELATIVE = """() => [...document.querySelectorAll("time.ago")].filter(it => it.offsetParent
    && !/\\d{4}-\\d\\d-\\d\\d/.test(getComputedStyle(it, "::after").content)).map(it => it.outerHTML)"""
#: What the reader of a page would have to scroll sideways for, or never sees: text that runs out of its box.
LOST = """() => [...document.querySelectorAll("main *")].filter(it => it.offsetParent
    && it.getBoundingClientRect().right > document.documentElement.clientWidth + 1
    && !it.closest("pre, .drawing, svg")).map(it => it.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def looked_at(
    postgres: PostgresServer,
    nats_server: NatsServer,
    valkey: ValkeyServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Console, dict[str, list[str]], set[str]]]:
    name, folder = f"console_looks_{uuid4().hex[:8]}", Path(tmp_path_factory.mktemp("looks"))
    filled = long_named(migrated(postgres, name), nats_server.url, valkey.url, f"test-{uuid4().hex}", folder)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(filled) as (settings, rows),
        listening(settings) as base,
    ):
        yield Console(base, ""), pages(rows), routes(settings)


def test_every_route_of_the_console_is_looked_at(
    looked_at: tuple[Console, dict[str, list[str]], set[str]],
) -> None:
    _, known, found = looked_at
    assert found == {*known}, "a new page belongs in tests/integration/console_hostile.py"


def test_long_names_fit_every_page_on_every_screen_and_on_paper(
    looked_at: tuple[Console, dict[str, list[str]], set[str]], browser: Browser
) -> None:
    console, known, _ = looked_at
    page = console.page(browser, 1280, 800, "light")
    found: list[object] = []
    for path in [it for paths in known.values() for it in paths]:
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto(path)
        settled(page)
        page.evaluate(AXE)
        violations = page.evaluate("rules => axe.run(document, rules)", ALL)["violations"]
        found += [(path, it["id"], it["nodes"][0]["html"][:200]) for it in violations]
        for width, height in ((2560, 1440), (1280, 800), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            wide = page.evaluate("document.documentElement.scrollWidth")
            found += [(path, width, f"is {wide} px wide")] if wide > width else []
            found += [(path, width, "runs out of the page", it) for it in page.evaluate(LOST)[:2]]
        found += [(path, "has no label", it) for it in page.evaluate(NAMELESS)[:2]]
        page.set_viewport_size({"width": 1280, "height": 800})
        page.emulate_media(media="print")
        printed = page.locator("main").inner_text()
        named = (path.partition("?")[0], *([LONG_CONTEXT] if path.startswith("/contexts/") else []))
        found += [(path, "is not printed", it) for it in named if it not in printed]
        found += [(path, "has no whole time", it) for it in page.evaluate(RELATIVE)[:2]]
        page.emulate_media(media="screen")
    page.close()
    assert not found, "\n".join(map(str, found))
    assert console.complaints == []
