"""The HTTP API of operators: what it answers, and what it does, on real servers."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from relay.devstack import NatsServer, ValkeyServer
from tests.integration.console_pages import Browser
from tests.integration.incidents import Desk, at_the_desk
from tests.integration.ops_api import Api, configured, misfit, serving
from tests.integration.publishing import query
from tests.integration.tasking import Mail, Tasks
from tests.pages import code

pytestmark = pytest.mark.anyio

EVENTS = "/contexts/sea/events"
LETTERS = "/contexts/sea/dead-letters"
TASKS = "/contexts/sea/tasks"


@pytest.fixture
async def api(database_url: str, nats_server: NatsServer, valkey: ValkeyServer) -> AsyncIterator[Api]:
    async with serving(configured(database_url, nats_server.url, valkey.url)) as api:
        yield api


@pytest.fixture
async def desk(database_url: str, nats_server: NatsServer) -> AsyncIterator[Desk]:
    async with at_the_desk(database_url, nats_server.url) as desk:
        yield desk


def insert(url: str, count: int = 1, **values: Any) -> list[str]:
    """Write events as any program may; ``values`` are SQL."""
    columns = {
        "id": "gen_random_uuid()",
        "aggregate_type": "'vibe'",
        "aggregate_id": "'v1'",
        "event_type": "'vibe_created'",
        "payload": """'{"n": 1}'""",
        "occurred_at": "now()",
        **values,
    }
    names, selected = ", ".join(columns), ", ".join(columns.values())
    sql = f"INSERT INTO outbox_events ({names}) SELECT {selected} FROM generate_series(1, {count}) RETURNING id"
    return [str(row["id"]) for row in query(url, sql)]


def send(mail: Mail) -> None:
    """A task's function, which no test runs."""


DEAD = {"dead_at": "now()", "publish_attempts": "5", "publish_error": "'time-out: no answer'"}
PUBLISHED = {
    "published_at": "now()",
    "published_stream": "'SEA'",
    "published_seq": "nextval('outbox_events_seq_seq')",
}


def codes(outcome: dict[str, Any]) -> dict[str, str]:
    return {it["id"]: it["error"]["code"] for it in outcome["refused"]}


async def test_events_are_listed_by_filter_and_paged_by_key(api: Api, database_url: str) -> None:
    ids = insert(database_url, 5)
    [dead] = insert(database_url, **DEAD)
    found = []
    page = await api.get(EVENTS, params={"limit": 2, "status": "waiting"})
    assert (page["total"], page["exact"]) == (5, True)
    while page["items"]:
        found += [it["id"] for it in page["items"]]
        assert "payload" not in page["items"][0]
        page = await api.get(EVENTS, params={"limit": 2, "status": "waiting", "before": page["next"] or 1})
    assert found == ids[::-1]
    for wanted in ({"status": "dead"}, {"error": "timeout"}, {"status": ["dead", "failing"]}):
        assert [it["id"] for it in (await api.get(EVENTS, params=wanted))["items"]] == [dead]
    assert (await api.get(EVENTS, params={"event_type": "other"}))["items"] == []
    assert (await api.get(EVENTS))["total"] == 6


async def test_an_event_is_shown_and_its_payload_on_demand(api: Api, database_url: str) -> None:
    [id] = insert(database_url)
    shown = await api.get(f"{EVENTS}/{id}")
    assert (shown["status"], shown["history"], "payload" in shown) == ("waiting", [], False)
    assert (await api.get(f"{EVENTS}/{id}", params={"payload": True}))["payload"] == {"n": 1}
    missing = await api.get(f"{EVENTS}/{id[::-1]}", 404)
    assert missing["error"]["code"] == "NOTHING_FOUND"


async def test_dead_events_are_retried_and_published_ones_replayed(api: Api, database_url: str) -> None:
    dead, waiting = insert(database_url, 3, **DEAD), insert(database_url)
    [published] = insert(database_url, **PUBLISHED)
    counted = await api.post(f"{EVENTS}/retry", {"all": True, "dry_run": True})
    assert (counted["count"], counted["done"]) == (3, [])
    outcome = await api.post(f"{EVENTS}/retry", {"ids": [dead[0], *waiting], "note": "the network is back"})
    assert (outcome["done"], codes(outcome)) == ([dead[0]], {waiting[0]: "NOT_PUBLISHABLE"})
    outcome = await api.post(f"{EVENTS}/retry", {"filter": {"error": "timeout"}})
    assert (sorted(outcome["done"]), outcome["refused"]) == (sorted(dead[1:]), [])
    refused = await api.post(f"{EVENTS}/retry", {"ids": [published]}, 409)
    assert refused["error"]["code"] == "NOT_PUBLISHABLE"
    assert (await api.post(f"{EVENTS}/replay", {"ids": [published]}))["done"] == [published]
    row, audit = query(database_url, "SELECT * FROM audit_log ORDER BY id")[0], "outbox.retry"
    assert (row["actor"], row["action"], row["ids"], row["note"]) == (
        "local",
        audit,
        [dead[0]],
        "the network is back",
    )
    [entry] = (await api.get(f"{EVENTS}/{dead[0]}"))["history"]
    assert (entry["actor"], entry["note"]) == ("local", "the network is back")


async def test_the_bodies_of_the_page_are_taken_and_answers_have_its_form(api: Api, database_url: str) -> None:
    dead, published = insert(database_url, 3, **DEAD), insert(database_url, **PUBLISHED)
    assert (await api.get(EVENTS)).keys() == json.loads(code("docs/reference/http-api.md", "json", 1)).keys()
    assert (await api.get(EVENTS)).keys() == json.loads(code("docs/reference/http-api.md", "json", 2)).keys()
    by_id, by_filter, all_of_them = (
        code("docs/reference/http-api.md", "jsonl", 1).replace("019c…", dead[0]).splitlines()
    )
    form = json.loads(code("docs/reference/http-api.md", "json", 3))
    for body, count in ((all_of_them, 3), (by_id, 1), (by_filter, 2)):
        outcome = await api.post(f"{EVENTS}/retry", json.loads(body))
        assert (outcome["count"], outcome.keys()) == (count, form.keys())
    query(database_url, "UPDATE outbox_events SET dead_at = now() WHERE id = %s", dead[0])
    [refused] = (await api.post(f"{EVENTS}/retry", {"ids": [dead[0], *published]}))["refused"]
    [shown] = form["refused"]
    assert (refused.keys(), refused["error"].keys()) == (shown.keys(), shown["error"].keys())
    for name in ("code", "message", "field"):
        assert refused["error"][name] == shown["error"][name]


async def test_an_action_on_too_many_does_nothing(api: Api, database_url: str) -> None:
    insert(database_url, 3, **DEAD)
    refused = await api.post(f"{EVENTS}/retry", {"all": True, "limit": 2}, 409)
    assert refused["error"]["code"] == "TOO_MANY"
    assert query(database_url, "SELECT count(*) AS n FROM outbox_events WHERE dead_at IS NOT NULL")[0]["n"] == 3


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": []},
        {"ids": ["a"], "all": True},
        {"filter": {}},
        {"filter": {"colour": "red"}},
        {"all": True, "x": 1},
    ],
)
async def test_an_action_that_does_not_say_what_it_is_for_is_refused(api: Api, body: dict[str, Any]) -> None:
    assert (await api.post(f"{EVENTS}/retry", body, 422))["error"]["code"] == "INVALID_REQUEST"


async def test_forged_letters_are_counted_and_hide_no_real_one(api: Api, desk: Desk, database_url: str) -> None:
    _, id = await desk.incident()
    query(
        database_url,
        "INSERT INTO dead_letters (message_id, subject, class, reason)"
        " SELECT gen_random_uuid(), 's', 'unconfirmed', 'unconfirmed: x' FROM generate_series(1, 700)"
        " RETURNING id",
    )
    page = await api.get(LETTERS)
    assert ([it["id"] for it in page["items"]], page["total"], page["unconfirmed"]) == ([id], 1, 700)
    assert [it["count"] for it in await api.get(f"{LETTERS}/groups")] == [1]
    others = await api.get(LETTERS, params={"class": "unconfirmed"})
    assert (others["total"], "unconfirmed" in others) == (700, False)


async def test_dead_letters_are_grouped_requeued_discarded_and_resolved(api: Api, desk: Desk) -> None:
    numbers = [(await desk.incident(payload={"secret": 7}))[1] for _ in range(4)]
    assert [it["id"] for it in (await api.get(LETTERS))["items"]] == numbers[::-1]
    [group] = await api.get(f"{LETTERS}/groups")
    assert (group["class"], group["count"]) == ("poison", 4)
    shown = await api.get(f"{LETTERS}/{numbers[0]}")
    assert "secret" not in str(shown)
    assert "secret" in (await api.get(f"{LETTERS}/{numbers[0]}", params={"payload": True}))["payload"]
    assert (await api.post(f"{LETTERS}/requeue", {"ids": [numbers[0]]}))["done"] == [str(numbers[0])]
    assert (await api.post(f"{LETTERS}/discard", {"ids": [numbers[1]]}, 422))["error"]["field"] == "note"
    for action, number in (("discard", numbers[1]), ("resolve", numbers[2])):
        assert (await api.post(f"{LETTERS}/{action}", {"ids": [number], "note": "seen"}))["count"] == 1
    again = await api.post(f"{LETTERS}/resolve", {"ids": [numbers[1]], "note": "again"}, 409)
    assert again["error"]["code"] == "INCIDENT_CLOSED"
    reasons = {"filter": {"reason": group["reason_code"], "class": ["poison"]}, "note": "mended"}
    assert (await api.post(f"{LETTERS}/requeue", reasons))["done"] == [str(numbers[3])]
    assert (await api.get(LETTERS))["total"] == 0
    closed = await api.get(LETTERS, params={"status": ["discarded", "resolved"]})
    assert [it["status"] for it in closed["items"]] == ["resolved", "discarded"]
    audited = [(row["actor"], row["action"]) for row in await desk.audit()]
    assert audited == [("local", f"dlq.{it}") for it in ("requeue", "discard", "resolve", "requeue")]


async def test_a_message_that_is_no_text_is_shown_as_base64(api: Api, desk: Desk, database_url: str) -> None:
    _, number = await desk.incident()
    query(database_url, r"UPDATE dead_letters SET original = '\xff00' RETURNING id")
    shown = await api.get(f"{LETTERS}/{number}", params={"payload": True})
    assert (shown["payload_encoding"], base64.b64decode(shown["payload"])) == ("base64", b"\xff\x00")


async def test_tasks_are_listed_cancelled_and_run_again(api: Api, database_url: str) -> None:
    tasks = Tasks(database_url)
    tasks.register(send)
    ids = [str(tasks.schedule(Mail(n=n))[0]) for n in range(3)]
    assert [it["id"] for it in (await api.get(TASKS, params={"limit": 2}))["items"]] == ids[:0:-1]
    assert (await api.post(f"{TASKS}/cancel", {"ids": [ids[0]]}))["done"] == [ids[0]]
    assert (await api.get(TASKS, params={"status": "cancelled"}))["total"] == 1
    assert (await api.post(f"{TASKS}/retry", {"ids": [ids[0]]}))["count"] == 1
    assert (await api.get(f"{TASKS}/{ids[0]}", params={"payload": True}))["payload"]["n"] == 0
    missing = await api.post(f"{TASKS}/cancel", {"ids": ["00000000-0000-0000-0000-000000000000"]}, 404)
    assert missing["error"]["code"] == "UNKNOWN_TASK"


async def test_backlogs_say_which_context_does_not_answer(api: Api, database_url: str) -> None:
    insert(database_url, 2)
    sea, quiet = await api.get("/backlogs")
    assert (sea["context"], sea["outbox"]["count"], sea["inbox"]["count"]) == ("sea", 2, 0)
    assert (quiet["context"], quiet["error"]["code"]) == ("quiet", "DATABASE_UNREACHABLE")
    assert await api.get("/contexts") == ["sea", "quiet"]
    assert (await api.get("/contexts/quiet/events", 503))["error"]["code"] == "DATABASE_UNREACHABLE"
    assert (await api.get("/contexts/lake/events", 404))["error"]["code"] == "UNKNOWN_CONTEXT"


async def test_the_life_of_a_message_and_what_is_wrong(api: Api, database_url: str) -> None:
    [id] = insert(database_url)
    sent = f"00-{'a' * 32}-{'b' * 16}-01"
    query(database_url, "UPDATE outbox_events SET headers = jsonb_build_object('traceparent', %s::text)", sent)
    life = await api.get("/explain", params={"id": id})
    shown = [(step["id"], step["trace_id"]) for step in life["steps"]]
    assert (shown, [*life["unread"]]) == ([(id, "a" * 32)], ["quiet"])
    found = await api.get("/doctor")
    assert {"DATABASE_UNREACHABLE", "STREAM_MISSING"} & {it["code"] for it in found["findings"]}


async def test_probes_name_each_server_with_time_and_error(api: Api) -> None:
    assert await api.get("/healthz") == {"status": "ok"}
    ready = await api.get("/readyz")
    servers = {it["server"]: it for it in ready["servers"]}
    assert servers["redis"]["healthy"]
    assert servers["redis"]["milliseconds"] >= 0
    assert servers["postgresql quiet"]["errors"] == ["DATABASE_UNREACHABLE"]
    assert {*servers} >= {"nats", "postgresql sea"}


async def test_without_any_database_it_is_not_ready(nats_server: NatsServer, valkey: ValkeyServer) -> None:
    async with serving(configured("postgresql://127.0.0.1:1/sea", nats_server.url, valkey.url)) as api:
        body = await api.get("/readyz", 503)
        assert body["ready"] is False
        assert misfit(await api.get("/openapi.json"), "GET", "/readyz", 503, body) is None


async def test_the_document_describes_every_route(api: Api) -> None:
    document = await api.get("/openapi.json")
    paths = {path: {*methods} for path, methods in document["paths"].items()}
    assert paths["/api/v1/contexts/{context}/dead-letters/requeue"] == {"post"}
    assert not [path for path, methods in paths.items() if methods - {"get", "post"}]


async def test_a_parked_key_is_released(api: Api, database_url: str) -> None:
    columns = "subscription, order_key, message_id, reason"
    values = "'s', 'k', gen_random_uuid(), 'r'"
    query(database_url, f"INSERT INTO parked_keys ({columns}) VALUES ({values}) RETURNING order_key")
    assert [it["key"] for it in await api.get("/contexts/sea/parked")] == ["k"]
    assert (await api.post("/contexts/sea/parked/release", {"keys": ["z"]}, 409))["error"]["code"] == "NOT_PARKED"
    assert (await api.post("/contexts/sea/parked/release", {}, 422))["error"]["code"] == "INVALID_REQUEST"
    assert (await api.post("/contexts/sea/parked/release", {"all": True, "note": "go"}))["done"] == ["s/k"]
    assert await api.get("/contexts/sea/parked") == []
    [entry] = await api.get("/contexts/sea/audit", params={"action": "parked.release"})
    assert (entry["actor"], entry["ids"], entry["count"], entry["note"]) == ("local", ["s/k"], 1, "go")
    for other in ({"actor": "ann"}, {"id": "s/other"}, {"before": entry["id"]}, {"action": "dlq.requeue"}):
        assert await api.get("/contexts/sea/audit", params=other) == []


async def test_a_scheduled_job_is_run_now(api: Api, database_url: str) -> None:
    query(
        database_url, "INSERT INTO scheduled_jobs (name, schedule) VALUES ('publish', 'every 1 s') RETURNING name"
    )
    assert (await api.post("/contexts/sea/schedule/publish/run", {"note": "now"}, 202))["name"] == "publish"
    [job] = (await api.get("/contexts/sea/schedule"))["jobs"]
    assert job["requested_at"] is not None
    assert (await api.post("/contexts/sea/schedule/nothing/run", {}, 404))["error"]["code"] == "UNKNOWN_JOB"
    [entry] = await api.get("/contexts/sea/audit", params={"id": "publish"})
    assert (entry["action"], entry["note"]) == ("schedule run", "now")


async def test_a_cron_job_is_paused_and_goes_on_and_a_duty_is_not_paused(api: Api, database_url: str) -> None:
    jobs = "('nightly', '0 3 * * *', now()), ('publish:sea', 'every 0.1 s', now())"
    query(database_url, f"INSERT INTO scheduled_jobs (name, schedule, next_run_at) VALUES {jobs} RETURNING name")
    path = "/contexts/sea/schedule"
    for _ in range(2):  # the second changes nothing, and is in no log
        assert (await api.post(f"{path}/nightly/pause", {"note": "import"}))["paused"] is True
    nightly, publish = (await api.get(path))["jobs"]
    assert (nightly["paused_at"] is None, nightly["next_run_at"]) == (False, None)
    assert publish["next_run_at"] is not None
    assert (await api.post(f"{path}/publish:sea/pause", {}, 409))["error"]["code"] == "NOT_PAUSABLE"
    assert (await api.post(f"{path}/nothing/pause", {}, 404))["error"]["code"] == "UNKNOWN_JOB"
    assert (await api.post(f"{path}/nightly/resume", {}))["paused"] is False
    assert (await api.get(path))["jobs"][0]["paused_at"] is None
    entries = await api.get("/contexts/sea/audit", params={"id": "nightly"})
    assert [(it["action"], it["note"]) for it in entries] == [
        ("schedule resume", None),
        ("schedule pause", "import"),
    ]


async def test_streams_fleet_and_archive_are_listed(api: Api) -> None:
    found = await api.get("/streams", params={"context": "sea"})
    assert {it["name"]: it["exists"] for it in found["streams"]}["SEA_EVENTS"] is False
    assert {"SEA_EVENTS"} <= {it["name"] for it in found["differences"]}
    assert (await api.get("/streams", 404, params={"context": "lake"}))["error"]["code"] == "UNKNOWN_CONTEXT"
    assert await api.get("/fleet") == []
    assert await api.get("/contexts/sea/archive") == []


async def test_a_list_that_many_refresh_here_and_in_the_console_is_read_once_a_second_and_anew_after_an_action(
    api: Api, database_url: str
) -> None:
    insert(database_url, **DEAD)
    bus = api.ops.queries
    asked, ask = 0, bus.ask_async

    async def counting(question: Any) -> Any:
        nonlocal asked
        asked += 1
        return await ask(question)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bus, "ask_async", counting)
        api.ops.recent.fresh_s = 3600.0
        pages = await asyncio.gather(*(api.get(EVENTS, params={"status": "dead"}) for _ in range(20)))
        assert ([page["total"] for page in pages], asked) == ([1] * 20, 1)
        shown = await asyncio.gather(
            *(Browser(api.client).open("/contexts/sea/events?status=dead") for _ in "two")
        )
        assert (["1 event" in page.text for page in shown], asked) == ([True] * 3, 1)
        await api.get(EVENTS, params={"status": "waiting"})
        assert asked == 2
        assert (await api.post(f"{EVENTS}/retry", {"all": True}))["count"] == 1
        assert (await api.get(EVENTS, params={"status": "dead"}))["total"] == 0
        api.ops.recent.fresh_s = 0.0
        insert(database_url, **DEAD)
        assert (await api.get(EVENTS, params={"status": "dead"}))["total"] == 1
