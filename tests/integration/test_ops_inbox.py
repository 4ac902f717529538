"""Messages of the inbox as operators see them, over HTTP and on the command line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from relay.adapters.postgres.inbox_operations import MessageFilter, PostgresMessageOperations
from relay.adapters.postgres.pool import connected
from relay.devstack import NatsServer, ValkeyServer
from tests.integration.consuming import SUBSCRIPTION, Handler
from tests.integration.incidents import Desk, at_the_desk
from tests.integration.ops_api import Api, configured, serving
from tests.integration.publishing import query
from tests.integration.test_cli_operating import CONFIG, Shell

pytestmark = pytest.mark.anyio

INBOX = "/contexts/sea/inbox"
SEA = ("--context", "sea")
STATES = {
    "waiting": {},
    "failing": {
        "attempts": "2",
        "last_error": "'time-out: no answer'",
        "next_attempt_at": "now() + interval '1 h'",
    },
    "running": {"attempts": "1", "claimed_until": "now() + interval '1 h'"},
    "parked": {"enqueued_at": "'infinity'"},
    "held": {"enqueued_at": "'infinity'", "next_attempt_at": "'infinity'"},
    "dead": {
        "dead_lettered_at": "now()",
        "dead_letter_reason": "'HTTP 422'",
        "dead_letter_class": "'deterministic'",
    },
    "processed": {"processed_at": "clock_timestamp()"},
    "discarded": {"processed_at": "clock_timestamp()", "dead_letter_class": "'discarded'"},
    "expired": {"processed_at": "clock_timestamp()", "dead_letter_class": "'expired'"},
}


@pytest.fixture
async def api(database_url: str, nats_server: NatsServer, valkey: ValkeyServer) -> AsyncIterator[Api]:
    async with serving(configured(database_url, nats_server.url, valkey.url)) as api:
        yield api


@pytest.fixture
async def desk(database_url: str, nats_server: NatsServer) -> AsyncIterator[Desk]:
    async with at_the_desk(database_url, nats_server.url) as desk:
        yield desk


@pytest.fixture
def shell(tmp_path: Path, database_url: str) -> Shell:
    return Shell(tmp_path, database_url)


def insert(url: str, count: int = 1, **values: str) -> list[str]:
    """Write messages of one moment; ``values`` are SQL. Returns their ids in the order of a list."""
    columns = {
        "message_id": "gen_random_uuid()",
        "subject": "'sea.event.vibe_created.v1'",
        "subscription": "'down'",
        "event_type": "'vibe_created'",
        "body": """'{"secret": 1}'""",
        "enqueued_at": "now()",
        **values,
    }
    names, selected = ", ".join(columns), ", ".join(columns.values())
    sql = f"INSERT INTO inbox_messages ({names}) SELECT {selected} FROM generate_series(1, {count})"
    return sorted((str(row["message_id"]) for row in query(url, f"{sql} RETURNING message_id")), reverse=True)


async def failed(desk: Desk, status: int = 503) -> UUID:
    """A message whose first attempt has just failed."""
    message_id = await desk.sub.send()
    await desk.sub.pull().accept(await desk.sub.fetch())
    await desk.sub.process(Handler.answering(status)).process(message_id)
    return message_id


async def test_each_state_is_listed_and_pages_follow_each_other_within_a_moment(
    api: Api, database_url: str
) -> None:
    ids = {state: insert(database_url, **columns)[0] for state, columns in STATES.items()}
    for state, id in ids.items():
        [found] = (await api.get(INBOX, params={"status": state}))["items"]
        assert (found["id"], found["status"], found["message_id"]) == (id, state, id)
        assert (await api.get(f"{INBOX}/{id}"))["status"] == state
    assert (await api.get(INBOX))["total"] == len(STATES)
    many = insert(database_url, 5, event_type="'many'")
    wanted, found = {"event_type": "many", "limit": 2}, list[str]()
    page = await api.get(INBOX, params=wanted)
    while page["next"]:
        found += [it["id"] for it in page["items"]]
        page = await api.get(INBOX, params=wanted | {"before": page["next"]})
    assert [*found, *(it["id"] for it in page["items"])] == many
    refused = await api.get(INBOX, 422, params={"before": "7"})
    assert (refused["error"]["code"], refused["error"]["field"]) == ("INVALID_REQUEST", "before")


@pytest.mark.parametrize(
    ("wanted", "column", "value"),
    [
        ({"subject": "other.*.vibe.>"}, "subject", "'other.event.vibe.created.v1'"),
        ({"subscription": "up"}, "subscription", "'up'"),
        ({"key": "a/7"}, "partition_key", "'a/7'"),
        ({"error": "connection_refused"}, "last_error", "'ConnectError: refused'"),
        ({"error": "HTTP 4"}, "dead_letter_reason", "'HTTP 422'"),
        ({"until": "2020-01-01T00:00:00Z"}, "received_at", "'2019-01-01'"),
        ({"since": "2090-01-01T00:00:00Z"}, "received_at", "'2091-01-01'"),
        (
            {"correlation_id": "019c0000-0000-7000-8000-000000000000"},
            "correlation_id",
            "'019c0000-0000-7000-8000-000000000000'",
        ),
    ],
)
async def test_a_filter_finds_what_fits_and_nothing_else(
    api: Api, database_url: str, wanted: dict[str, str], column: str, value: str
) -> None:
    insert(database_url)
    [id] = insert(database_url, **{column: value})
    page = await api.get(INBOX, params=wanted)
    assert ([it["id"] for it in page["items"]], page["total"]) == ([id], 1)


async def test_a_message_that_failed_is_tried_with_the_next_sweep(api: Api, desk: Desk) -> None:
    id = await failed(desk)
    [group] = await api.get(f"{INBOX}/groups")
    assert group == {"error_code": "status_503", "subscription": SUBSCRIPTION, "count": 1}
    assert await desk.sub.inbox.overdue(SUBSCRIPTION, 10) == []
    outcome = await api.post(f"{INBOX}/retry", {"filter": {"error": "status_503"}, "note": "it is back"})
    assert (outcome["done"], outcome["refused"]) == ([str(id)], [])
    assert await desk.sub.inbox.overdue(SUBSCRIPTION, 10) == [id]
    await desk.sub.process(Handler.answering(200)).process(id)
    shown = await api.get(f"{INBOX}/{id}")
    assert (shown["status"], shown["attempts"]) == ("processed", 2)
    assert [(it["actor"], it["action"], it["note"]) for it in shown["history"]] == [
        ("local", "inbox.retry", "it is back")
    ]


async def test_what_does_not_wait_for_an_attempt_is_refused_with_the_way_out(api: Api, database_url: str) -> None:
    for state, columns in STATES.items():
        if state != "failing":
            [id] = insert(database_url, **columns)
            refused = await api.post(f"{INBOX}/retry", {"ids": [id]}, 409)
            assert (refused["error"]["code"], refused["error"]["message"]) == ("NOT_RETRYABLE", f"is {state}")
    missing = await api.post(f"{INBOX}/retry", {"ids": ["nothing"]}, 404)
    assert (missing["error"]["code"], missing["refused"][0]["id"]) == ("UNKNOWN_MESSAGE", "nothing")
    assert (await api.get("/contexts/sea/audit")) == []


async def test_a_body_is_shown_on_demand_and_an_id_that_is_text_by_its_text(
    api: Api, desk: Desk, database_url: str
) -> None:
    body = json.dumps({"event_type": "vibe_created", "event_version": 1, "payload": {"secret": 1}}).encode()
    await desk.sub.send(body, Nats_Msg_Id="order 7")
    await desk.sub.pull().accept(await desk.sub.fetch())
    shown = await api.get(f"{INBOX}/order 7")
    assert shown["message_id"] == "order 7"
    assert "secret" not in str(shown)
    [listed] = (await api.get(INBOX))["items"]
    assert (listed["id"], listed["message_id"]) == (shown["id"], "order 7")
    assert "secret" in (await api.get(f"{INBOX}/{shown['id']}", params={"payload": True}))["payload"]
    query(database_url, "UPDATE inbox_messages SET last_error = 'x' RETURNING message_id")
    assert (await api.post(f"{INBOX}/retry", {"ids": ["order 7"]}))["done"] == ["order 7"]


async def test_the_command_line_lists_shows_and_tries_now(shell: Shell, database_url: str) -> None:
    [failing] = insert(database_url, **STATES["failing"])
    [done] = insert(database_url, **STATES["processed"])
    [found] = shell.json("inbox", "list", *SEA)
    assert (found["id"], found["status"], found["error_code"]) == (failing, "failing", "timeout")
    assert {it["id"] for it in shell.json("inbox", "list", "--all", *SEA)} == {failing, done}
    nothing = shell("inbox", "list", "--status", "dead", *SEA)
    assert "No dead messages in sea." in nothing
    assert "In all states: 2. See --status waiting, failing, " in nothing
    shown = shell("inbox", "show", failing, *SEA)
    assert "time-out: no answer" in shown
    assert "secret" not in shown
    assert "secret" in shell("inbox", "show", failing, "--payload", *SEA)
    assert "UNKNOWN_MESSAGE" in shell("inbox", "show", "nothing", *SEA, status=1)
    assert shell("inbox", "retry", "--all", "--actor", "bob", *SEA) == "sea: tried now 1\n"
    assert shell.json("inbox", "show", failing, *SEA)["history"][0]["actor"] == "bob"
    assert f"error NOT_RETRYABLE: {done}: is processed" in shell("inbox", "retry", done, *SEA, status=1)


def test_a_message_is_shown_without_its_context_where_several_have_an_inbox(
    shell: Shell, database_url: str, tmp_path: Path
) -> None:
    [failing] = insert(database_url, **STATES["failing"])
    second = CONFIG.partition("[contexts.sea.")[2].partition("[contexts.quiet]")[0].replace("up", "down")
    (tmp_path / "relay.toml").write_text(f"{CONFIG}[contexts.quiet.{second}")
    shown = shell("inbox", "show", failing)
    assert "time-out: no answer" in shown
    assert "error DATABASE_UNREACHABLE: context quiet" in shown
    several = shell("inbox", "show", "order 7", status=1)
    assert "error INVALID_REQUEST: " in several, "a text may be the id of several"


async def test_a_page_is_planned_for_its_filter_however_often_it_is_asked_for(database_url: str) -> None:
    """A plan for any filter reads and sorts all that waits (`test_plans.py`)."""
    async with connected(database_url, "test") as source:
        for _ in range(7):
            await PostgresMessageOperations(source).find(MessageFilter(statuses=["waiting"]), 10)
        async with source() as conn:
            found = await conn.execute(
                "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%matching%'"
            )
            assert await found.fetchone() == (0,)
