"""A list whose filter passes over many rows looks at a part of them, says so, and looks at all when asked to."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.adapters.postgres.inbox_operations import MessageFilter, PostgresMessageOperations
from relay.adapters.postgres.paging import IN_ORDER, Reach, ends
from relay.adapters.postgres.row_operations import (
    EventFilter,
    Operations,
    PostgresOutboxOperations,
    PostgresTaskOperations,
    TaskFilter,
)
from relay.adapters.postgres.sql import statement
from relay.devstack import NatsServer, ValkeyServer
from relay.ops.api.common import OpsLimits
from tests.integration.console_pages import Browser
from tests.integration.crowded import events, messages, repeatable, tasks
from tests.integration.ops_api import Api, configured, serving
from tests.integration.plans import explain, held_to
from tests.integration.publishing import query
from tests.integration.test_cli_operating import Shell
from tests.integration.test_ops_inbox import SEA, insert

pytestmark = pytest.mark.anyio

MANY, WINDOW = 20_000, 1_000
MESSAGES = ["waiting", "failing", "running", "parked", "dead", "processed"]
EVENTS = ["waiting", "delayed", "failing", "dead", "published", "discarded", "expired"]
#: Ten minutes ago came the first message, and a tenth of a second later the hundredth.
MIDDLE = datetime.now(UTC) - timedelta(minutes=10) + timedelta(seconds=10)
LOOKS: dict[str, tuple[type[Operations], str, Any]] = {
    "messages of a type": (
        PostgresMessageOperations,
        "messages",
        MessageFilter(statuses=MESSAGES, event_type="nothing"),
    ),
    "those of a subject": (
        PostgresMessageOperations,
        "messages",
        MessageFilter(statuses=MESSAGES, subject="nothing"),
    ),
    "those with an error": (
        PostgresMessageOperations,
        "messages",
        MessageFilter(statuses=MESSAGES, error="nothing"),
    ),
    "those that wait": (PostgresMessageOperations, "messages", MessageFilter(statuses=["waiting"])),
    "those of a key before": (
        PostgresMessageOperations,
        "messages",
        MessageFilter(statuses=MESSAGES, partition_key="nothing", until=MIDDLE),
    ),
    "events of a type": (PostgresOutboxOperations, "events", EventFilter(statuses=EVENTS, event_type="nothing")),
    "events that wait": (PostgresOutboxOperations, "events", EventFilter(statuses=["waiting"])),
    "events that are delayed": (
        PostgresOutboxOperations,
        "events",
        EventFilter(statuses=["delayed"], aggregate_type="nothing"),
    ),
    "events of an aggregate before": (
        PostgresOutboxOperations,
        "events",
        EventFilter(statuses=EVENTS, aggregate_id="nothing", until=MIDDLE),
    ),
    "tasks of a type": (PostgresTaskOperations, "tasks", TaskFilter(statuses=["completed"], type="nothing")),
    "tasks that were cancelled": (PostgresTaskOperations, "tasks", TaskFilter(statuses=["cancelled"])),
}


def filled(conn: psycopg.Connection[Any]) -> None:
    """Many of each state, and in the inbox as many that fail between those that are processed."""
    repeatable(conn)
    wrong = {"last_error": "'refused'", "attempts": "1"}
    came = "now() - interval '10 min' + n * interval '1 ms'"
    messages(conn, 1, 1_000, "quiet")
    messages(conn, 1_001, MANY, "busy", processed_at=f"{came} + interval '1 ms'", received_at=came)
    messages(conn, 1_001, MANY, "busy", **wrong)
    messages(conn, 1_001, MANY, "busy", dead_lettered_at=came, dead_letter_reason="'refused'")
    events(conn, MANY, "'key' || n", occurred_at=came, published_at=f"{came} + interval '1 ms'")
    events(conn, 1_000, "'late' || n", occurred_at="now() - interval '11 min'")
    later = "now() + interval '1 hour' + n * interval '1 ms'"
    events(conn, MANY, "'later' || n", occurred_at="now() - interval '10 min'", available_at=later)
    # Where failing ones are wanted, dead ones are read as well: both are few.
    events(conn, 1_900, "'dead' || n", occurred_at=came, dead_at=came, publish_attempts="1")
    tasks(conn, MANY, status="'completed'", finished_at=came, created_at=came)
    conn.execute("VACUUM ANALYZE")


def parameters(wanted: Any) -> dict[str, Any]:
    """A short look, as parameters of its statements."""
    nothing = {
        "unless": [],
        "keys": None,
        "before": None,
        "before_at": None,
        "before_id": None,
        "payload_path": None,
        "payload_value": None,
    }
    size = {"limit": 50, "counted": 10_001, "window": WINDOW}
    return {**asdict(wanted), "mixed": getattr(wanted, "mixed", None), **nothing, **size}


def test_a_short_look_reads_no_more_than_its_window(database_url: str, subtests: pytest.Subtests) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        filled(conn)
        for name, (store, listed, wanted) in LOOKS.items():
            with subtests.test(name), conn.transaction():
                if store is PostgresOutboxOperations:
                    conn.execute(IN_ORDER)
                asked = parameters(wanted)
                held_to(explain(conn, f"{store.kind}/reach", **asked), WINDOW + 1, 0)
                found = conn.execute(statement(f"{store.kind}/reach"), asked).fetchall()
                reach = {order: Reach(*times) for order, *times in found}
                plan = explain(conn, f"{store.kind}/{listed}", **{**asked, **ends(store.orders, reach)})
                # In both directions from `until`, and those of one moment.
                assert plan.touched <= 2 * WINDOW + 200
                assert not plan.read_whole()
                assert plan.root["Shared Hit Blocks"] + plan.root["Shared Read Blocks"] < 6 * WINDOW


def test_a_look_at_waiting_events_has_an_end_if_it_may_pass_over_many(database_url: str) -> None:
    """Over others of a filter, or over failed or delayed ones. To find the end, it reads them once more."""

    def ends_there(**fields: str) -> bool:
        asked = parameters(EventFilter(statuses=["waiting"], **fields))
        [(order, since, _)] = conn.execute(statement("outbox/reach"), asked).fetchall() or [
            ("waiting", None, None)
        ]
        assert order == "waiting"
        return since is not None

    with psycopg.connect(database_url, autocommit=True) as conn:
        repeatable(conn)
        events(conn, WINDOW + 1, "'key' || n")
        for field in ("event_type", "aggregate_type", "aggregate_id"):
            assert ends_there(**{field: "nothing"})
        events(conn, WINDOW - 1, "'failed' || n", publish_attempts="1")
        assert not ends_there()
        events(conn, 1, "'another'", publish_attempts="1")
        assert ends_there()
        conn.execute("DELETE FROM outbox_events WHERE publish_attempts > 0")
        events(conn, WINDOW - 1, "'later' || n", available_at="now() + interval '1 hour'")
        assert not ends_there()
        events(conn, 1, "'last'", available_at="now() + interval '1 hour'")
        assert ends_there()


# --- and nobody takes a part for the whole ---


#: A short look reads so few rows that ten are many.
NARROW = OpsLimits(window=3)


@pytest.fixture
async def api(database_url: str, nats_server: NatsServer, valkey: ValkeyServer) -> AsyncIterator[Api]:
    async with serving(configured(database_url, nats_server.url, valkey.url), limits=NARROW) as api:
        yield api


def crowded(url: str) -> str:
    """Ten messages were processed, one a minute, and before them one of another type: returns its id."""
    at = "now() - n * interval '1 minute'"
    for n in range(1, 11):
        moment = at.replace("n *", f"{n} *")
        insert(url, received_at=moment, processed_at=f"{moment} + interval '1 second'")
    long_ago = "now() - interval '1 hour'"
    [id] = insert(url, event_type="'rare'", received_at=long_ago, processed_at=f"{long_ago} + interval '1 second'")
    return id


async def test_a_page_says_where_its_look_ended_and_finds_the_rest_when_asked_for_all(
    api: Api, database_url: str
) -> None:
    id, inbox = crowded(database_url), "/contexts/sea/inbox"
    short = await api.get(inbox, params={"event_type": "rare"})
    assert (short["items"], short["total"], short["exact"]) == ([], 0, False)
    [(order, reach)] = short["reach"].items()
    [fourth] = query(database_url, "SELECT processed_at FROM inbox_messages ORDER BY 1 DESC OFFSET 3 LIMIT 1")
    assert (order, datetime.fromisoformat(reach["since"]), reach["until"]) == (
        "processed",
        fourth["processed_at"],
        None,
    )
    whole = await api.get(inbox, params={"event_type": "rare", "thorough": True})
    assert ([it["id"] for it in whole["items"]], whole["total"], whole["exact"]) == ([id], 1, True)
    assert whole["reach"] == {}


async def test_a_look_that_sees_all_says_nothing(api: Api, database_url: str) -> None:
    crowded(database_url)
    lately = (datetime.now(UTC) - timedelta(minutes=3, seconds=30)).isoformat()
    seen = await api.get("/contexts/sea/inbox", params={"event_type": "rare", "since": lately})
    assert (seen["total"], seen["exact"], seen["reach"]) == (0, True, {})
    unfiltered = await api.get("/contexts/sea/inbox")
    assert (unfiltered["total"], unfiltered["exact"], unfiltered["reach"]) == (11, True, {})


async def test_before_a_time_a_look_goes_both_ways_from_it(api: Api, database_url: str) -> None:
    """A message that came before the time may have been processed after it."""
    id = crowded(database_url)
    [late] = insert(
        database_url,
        event_type="'rare'",
        received_at="now() - interval '1 hour'",
        processed_at="now() - interval '9 minutes 30 seconds'",
    )
    until = (datetime.now(UTC) - timedelta(minutes=10, seconds=30)).isoformat()
    found = await api.get("/contexts/sea/inbox", params={"event_type": "rare", "until": until})
    assert {it["id"] for it in found["items"]} == {id, late}
    assert found["reach"]["processed"]["since"] is None
    assert datetime.fromisoformat(found["reach"]["processed"]["until"]) > datetime.fromisoformat(until)


async def test_the_console_tells_it_and_offers_to_look_at_all(api: Api, database_url: str) -> None:
    id, browser = crowded(database_url), Browser(api.client)
    page = await browser.open("/contexts/sea/inbox?event_type=rare")
    assert re.search(r"only 3 rows .* processed since", page.text)
    [link] = [it for it in page.links if "thorough" in it]
    whole = await browser.open(link)
    assert id in whole.html
    assert "only 3 rows" not in whole.text
    # Nobody has a large table read whole every five seconds.
    refreshing = [
        [found.get("hx-trigger") for _, found in it.tags if found.get("id") == "live"] for it in (page, whole)
    ]
    assert refreshing == [["refresh from:body"], [None]]
    assert whole.data("total") == "1"


async def test_an_action_on_all_of_a_filter_looks_at_all(api: Api, database_url: str) -> None:
    wrong = "'time-out: no answer'"
    for n in range(1, 6):
        insert(database_url, received_at=f"now() - {n} * interval '1 minute'", last_error=wrong)
    [id] = insert(database_url, received_at="now() - interval '1 hour'", event_type="'rare'", last_error=wrong)
    assert (await api.get("/contexts/sea/inbox", params={"event_type": "rare"}))["items"] == []
    outcome = await api.post("/contexts/sea/inbox/retry", {"filter": {"event_type": "rare"}})
    assert outcome["done"] == [id]
    page = await Browser(api.client).open("/contexts/sea/inbox/retry?all=1&event_type=rare&thorough=1")
    assert "1 message" in page.text


def test_the_command_line_looks_at_all(tmp_path: Path, database_url: str) -> None:
    id = crowded(database_url)
    [found] = Shell(tmp_path, database_url).json("inbox", "list", "--all", "--event-type", "rare", *SEA)
    assert found["id"] == id
