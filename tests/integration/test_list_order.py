"""The order of lists in console, API and command line: the newest first or the oldest, page by page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest

from relay.devstack import NatsServer, ValkeyServer
from relay.ops.api.common import OpsLimits
from relay.ops.kinds import KINDS, Kind
from tests.integration.console_pages import Browser
from tests.integration.console_rows import event, fill, fill_more
from tests.integration.ops_api import Api, configured, serving
from tests.integration.test_cli_operating import SEA, Shell

pytestmark = pytest.mark.anyio
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@pytest.fixture
def limits() -> OpsLimits:
    return OpsLimits()


@pytest.fixture
async def api(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer, limits: OpsLimits
) -> AsyncIterator[Api]:
    fill(database_url, database_url)
    fill_more(database_url)
    async with serving(configured(database_url, nats_server.url, valkey.url), limits=limits) as api:
        yield api


async def walk(api: Api, kind: Kind, **asked: Any) -> list[Any]:
    """The ids of all pages of a list, each of three rows, in the order of the list."""
    found: list[Any] = []
    following: Any = None
    while True:
        more = {} if following is None else {"before": following}
        page = await api.get(f"/contexts/sea/{kind.path}", params={"limit": 3, **asked, **more})
        found += [it["id"] for it in page["items"]]
        if (following := page["next"]) is None or not page["items"]:
            return found


@kinds
async def test_pages_from_the_oldest_on_are_those_from_the_newest_on_turned_round(api: Api, kind: Kind) -> None:
    for asked in ({"status": [*kind.states]}, {"status": [*kind.states], "since": "2h"}):
        newest, oldest = await walk(api, kind, **asked), await walk(api, kind, **asked, order="oldest")
        assert len({*newest}) == len(newest) > 4
        assert oldest == newest[::-1]


@pytest.mark.parametrize("limits", [OpsLimits(window=5)])
async def test_a_short_look_from_the_oldest_on_says_until_when_it_looked(api: Api) -> None:
    asked = {"event_type": "order_placed", "status": "published"}
    newest, oldest = [
        await api.get("/contexts/sea/events", params={**asked, "order": it}) for it in ("newest", "oldest")
    ]
    for page, end in ((newest, "since"), (oldest, "until")):
        [reach] = page["reach"].values()
        assert [name for name, at in reach.items() if at] == [end]
        assert not page["exact"]
    first, last = [{it["published_at"] for it in page["items"]} for page in (newest, oldest)]
    assert len(first) == len(last) == 6
    assert min(first) > max(last)


@kinds
async def test_the_head_of_the_column_turns_the_list_and_keeps_its_filter(api: Api, kind: Kind) -> None:
    browser, asked = Browser(api.client), {"status": [*kind.states], "limit": 4}
    place = f"/contexts/sea/{kind.path}"
    page = await browser.open(f"{place}?{urlencode(asked, doseq=True)}")
    heads = [found for tag, found in page.tags if tag == "th" and "aria-sort" in found]
    assert [it["aria-sort"] for it in heads] == ["descending"]
    [turned] = [it for it in page.links if "order=oldest" in it and "before=" not in it and "ids" not in it][:1]
    assert all(f"status={it}" in turned for it in kind.states)
    assert "limit=4" in turned
    oldest = await browser.open(turned)
    assert 'aria-sort="ascending"' in oldest.html
    expected = (await walk(api, kind, status=[*kind.states]))[::-1]
    assert re.findall(r'name="ids" value="([^"]+)"', oldest.html) == [str(it) for it in expected[:4]]
    [following] = [found["href"] for tag, found in oldest.tags if found.get("rel") == "next"]
    assert "order=oldest" in (following or "")
    second = await browser.open(following or "")
    assert re.findall(r'name="ids" value="([^"]+)"', second.html) == [str(it) for it in expected[4:8]]
    for link in second.links:
        if "all=1" in link:  # what is done to all of a filter has no order
            await browser.open(link)
            break


@kinds
async def test_the_command_line_turns_lists_too(api: Api, kind: Kind, tmp_path: Path, database_url: str) -> None:
    shell = Shell(tmp_path, database_url)
    newest, oldest = [
        [it["id"] for it in shell.json(kind.command, "list", "--all", "--order", order, *SEA)]
        for order in ("newest", "oldest")
    ]
    assert oldest == newest[::-1]
    assert len(newest) > 4


async def test_events_that_wait_and_are_delayed_come_oldest_first_too(api: Api, database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        late = event(connection, "late")
        connection.execute("UPDATE outbox_events SET available_at = now() + interval '1 h' WHERE id = %s", [late])
    asked = {"status": ["waiting", "delayed"]}
    newest, oldest = [await walk(api, KINDS["events"], **asked, order=it) for it in ("newest", "oldest")]
    assert oldest == newest[::-1]
    assert str(late) == newest[0]
