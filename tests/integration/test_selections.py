"""An act is done to the rows that were counted for it, at most and once, in every face; and undone for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from relay.devstack import NatsServer, ValkeyServer
from relay.ops.kinds import KINDS, Action, Kind
from tests.integration.console_pages import Browser
from tests.integration.console_rows import event, failing_message, letter, number, task
from tests.integration.ops_api import Api, configured, serving
from tests.integration.publishing import query
from tests.integration.test_cli_operating import Shell

pytestmark = pytest.mark.anyio

SEA = "/contexts/sea"
ACTS = [(kind, action) for kind in KINDS.values() for action in kind.actions]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOTE = [("note", "a test"), ("for", "1h")]


@pytest.fixture
async def api(database_url: str, nats_server: NatsServer, valkey: ValkeyServer) -> AsyncIterator[Api]:
    async with serving(configured(database_url, nats_server.url, valkey.url)) as api:
        yield api


class Rows:
    """Rows to which an action fits, of a type that no other row has."""

    def __init__(self, url: str, kind: Kind, action: Action) -> None:
        self.url, self.kind, self.action = url, kind, action
        self.type = f"{kind.path}-{action.name}"
        self.filter = {"type" if kind.path == "tasks" else "event_type": self.type}

    def arrive(self, name: str, age: int = 90) -> str:
        """One more row in a state that the action's filter finds."""
        with psycopg.connect(self.url) as conn:
            return str(_MAKERS[self.kind.path](conn, f"{self.type}-{name}", self.action.states[0], self.type, age))

    def changed(self) -> set[str]:
        """The rows that the audit log names for the action."""
        rows = query(self.url, "SELECT ids FROM audit_log WHERE action = %s", self.word)
        return {id for row in rows for id in row["ids"]}

    @property
    def word(self) -> str:
        return f"{self.kind.store.kind}.{self.action.name}"


def _event(conn: psycopg.Connection, name: str, state: str, kind: str, age: int) -> UUID:
    born = "waiting" if state in ("discarded", "expired") else state
    id = event(conn, name, born, type=kind, age=age, error="STREAM_MISSING: x" if state == "dead" else None)
    if born != state:
        ends = "now()" if state == "expired" else "NULL"
        sql = f"UPDATE outbox_events SET published_at = now(), dead_at = now(), expires_at = {ends} WHERE id = %s"
        conn.execute(sql.encode(), [id])
    return id


def _letter(conn: psycopg.Connection, name: str, state: str, kind: str, age: int) -> int:
    message = letter(conn, name, type=kind, age=age, subscription="from_upstream")
    change = {
        "snoozed": "snoozed_until = now() + interval '1 hour'",
        "discarded": "status = 'discarded', closed_at = now(), closed_by = 'ann'",
    }
    if state in change:
        conn.execute(f"UPDATE dead_letters SET {change[state]} WHERE message_id = %s".encode(), [message])
    row = conn.execute("SELECT id FROM dead_letters WHERE message_id = %s", [message]).fetchone()
    assert row is not None
    return int(row[0])


def _task(conn: psycopg.Connection, name: str, state: str, kind: str, age: int) -> UUID:
    return task(conn, name, state, type=kind, age=age)


def _message(conn: psycopg.Connection, name: str, state: str, kind: str, age: int) -> UUID:
    id = failing_message(conn, name, type=kind, age=age)
    change = {
        "waiting": "attempts = 0, last_error = NULL, next_attempt_at = NULL",
        "held": "next_attempt_at = 'infinity', enqueued_at = 'infinity'",
        "discarded": "processed_at = now(), dead_letter_class = 'discarded', next_attempt_at = NULL",
        "expired": "processed_at = now(), dead_letter_class = 'expired', next_attempt_at = NULL",
    }
    if state in change:
        conn.execute(f"UPDATE inbox_messages SET {change[state]} WHERE message_id = %s".encode(), [id])
    return id


_MAKERS: dict[str, Callable[[psycopg.Connection, str, str, str, int], object]] = {
    "events": _event,
    "inbox": _message,
    "dead-letters": _letter,
    "tasks": _task,
}


def every(url: str) -> list[Rows]:
    return [Rows(url, kind, action) for kind, action in ACTS]


def body(rows: Rows, **which: Any) -> dict[str, Any]:
    return {**which, "note": "a test", **{it.name: it.hint for it in rows.action.arguments}}


def parked(url: str, *keys: str, subscription: str = "from_upstream") -> None:
    for key in keys:
        insert = "INSERT INTO parked_keys (subscription, order_key, message_id, reason) VALUES (%s, %s, %s, 'r')"
        query(url, f"{insert} RETURNING order_key", subscription, key, number(f"{subscription}/{key}"))


# --- at most what was counted ---


async def test_over_http_what_arrives_after_the_count_is_left_and_said(api: Api, database_url: str) -> None:
    for rows in every(database_url):
        path = f"{SEA}/{rows.kind.path}/{rows.action.name}"
        counted = {rows.arrive("first"), rows.arrive("second")}
        dry = await api.post(path, body(rows, filter=rows.filter, dry_run=True))
        assert dry["count"] == 2, rows.type
        rows.arrive("late")
        rows.arrive("late, and older", age=9_000)
        done = await api.post(path, body(rows, selection=dry["selection"]))
        assert ({*done["done"]}, done["left"], done["gone"]) == (counted, 2, 0), rows.type
        assert rows.changed() == counted
        again = await api.post(path, body(rows, selection=dry["selection"]), 409)
        assert again["error"]["code"] == "SELECTION_USED"
        assert rows.changed() == counted


async def test_in_the_console_what_arrives_after_the_question_is_left_and_said(
    api: Api, database_url: str
) -> None:
    browser = Browser(api.client)
    for rows in every(database_url):
        path = f"{SEA}/{rows.kind.path}/{rows.action.name}"
        counted = {rows.arrive("first"), rows.arrive("second")}
        asked = await browser.open(path, all="1", **rows.filter)
        assert asked.data("count") == "2", rows.type
        rows.arrive("late")
        answer = await browser.send(path, [*asked.fields, *NOTE], 303)
        deed = answer.headers["location"]
        assert deed.startswith(f"{SEA}/audit/")
        done = await browser.open(deed)
        assert (done.outcome, done.data("left")) == (("2", "0"), "1"), rows.type
        # Sent again, by Back and a press, or by two presses: the same page, and nothing is done.
        again = await browser.send(path, [*asked.fields, *NOTE], 303)
        assert again.headers["location"] == deed
        assert rows.changed() == counted


async def test_on_the_command_line_what_arrives_during_the_question_is_left(
    tmp_path: Path, database_url: str
) -> None:
    shell = Shell(tmp_path, database_url)
    for rows in every(database_url):
        counted = {rows.arrive("first"), rows.arrive("second")}
        which = ["--type" if rows.kind.path == "tasks" else "--event-type", rows.type]
        more = [word for it in rows.action.arguments for word in (f"--{it.name.replace('_', '-')}", it.hint)]
        command = [rows.kind.command, rows.action.name, *which, *more, "--note", "a test", "--context", "sea"]
        told = shell(*command, answer="y\n", meanwhile=lambda rows=rows: rows.arrive("late"))
        assert f"2 {rows.kind.many} of sea will be" in told
        assert "1 that fitted besides were left" in told
        assert rows.changed() == counted


async def test_what_fits_no_more_is_neither_changed_nor_refused(api: Api, database_url: str) -> None:
    """Somebody discards one of two between the count and the requeue: it stays discarded."""
    rows = Rows(database_url, KINDS["dead-letters"], KINDS["dead-letters"].action("requeue"))
    kept, lost = rows.arrive("kept"), rows.arrive("lost")
    path = f"{SEA}/dead-letters"
    dry = await api.post(f"{path}/requeue", body(rows, filter=rows.filter, dry_run=True))
    await api.post(f"{path}/discard", {"ids": [int(lost)], "note": "by another"})
    done = await api.post(f"{path}/requeue", body(rows, selection=dry["selection"]))
    assert (done["done"], done["refused"], done["gone"]) == ([kept], [], 1)
    assert (await api.get(f"{path}/{lost}"))["status"] == "discarded"


async def test_of_two_that_use_a_selection_at_once_one_does_it(api: Api, database_url: str) -> None:
    rows = Rows(database_url, KINDS["events"], KINDS["events"].action("replay"))
    rows.arrive("first"), rows.arrive("second")
    path = f"{api_path(rows)}/replay"
    dry = await api.post(f"{SEA}/events/replay", body(rows, filter=rows.filter, dry_run=True))
    sent = [api.client.post(path, json=body(rows, selection=dry["selection"])) for _ in range(5)]
    answers = await asyncio.gather(*sent)
    assert sorted(it.status_code for it in answers if it.json().get("done")) == [200]
    [entry] = query(database_url, "SELECT cardinality(ids) AS n FROM audit_log WHERE action = 'outbox.replay'")
    assert entry["n"] == 2
    generations = query(database_url, "SELECT generation FROM outbox_events WHERE event_type = %s", rows.type)
    assert [it["generation"] for it in generations] == [1, 1]


def api_path(rows: Rows) -> str:
    return f"/api/v1{SEA}/{rows.kind.path}"


async def test_a_selection_is_for_its_own_act(api: Api, database_url: str) -> None:
    rows = Rows(database_url, KINDS["dead-letters"], KINDS["dead-letters"].action("requeue"))
    rows.arrive("first")
    dry = await api.post(f"{SEA}/dead-letters/requeue", body(rows, filter=rows.filter, dry_run=True))
    other = {"selection": dry["selection"], "note": "x"}
    assert (await api.post(f"{SEA}/dead-letters/discard", other, 422))["error"]["field"] == "selection"
    assert (await api.post(f"{SEA}/parked/release", other, 422))["error"]["field"] == "selection"
    unknown = {"selection": str(number("unknown")), "note": "x"}
    answer = await api.post(f"{SEA}/dead-letters/requeue", unknown, 404)
    assert answer["error"]["code"] == "UNKNOWN_SELECTION"
    assert rows.changed() == set()


async def test_a_form_that_counted_nothing_is_asked_first(api: Api, database_url: str) -> None:
    """As one of a page that was open before an upgrade."""
    rows = Rows(database_url, KINDS["dead-letters"], KINDS["dead-letters"].action("requeue"))
    rows.arrive("first")
    page = await Browser(api.client).send(f"{SEA}/dead-letters/requeue", [("all", "1")], 422)
    assert page.data("count") == "1"
    assert rows.changed() == set()


# --- jobs of the schedule ---


@pytest.mark.parametrize("verb", ["run", "pause", "resume"])
async def test_a_job_is_run_paused_and_resumed_once_however_often_the_form_is_sent(
    api: Api, database_url: str, verb: str
) -> None:
    browser, path = Browser(api.client), f"{SEA}/schedule/{verb}"
    insert = "INSERT INTO scheduled_jobs (name, schedule, paused_at) VALUES (%s, '0 3 * * *', %s) RETURNING name"
    for name in ("nightly", "weekly"):
        query(database_url, insert, name, NOW if verb == "resume" else None)
    asked = await browser.open(path, name="nightly")
    assert query(database_url, "SELECT * FROM audit_log") == []
    answer = await browser.send(path, [*asked.fields, *NOTE[:1]], 303)
    [entry] = query(database_url, "SELECT id, action, ids, note FROM audit_log")
    assert (entry["action"], entry["ids"], entry["note"]) == (f"schedule {verb}", ["nightly"], "a test")
    deed = f"{SEA}/audit/{entry['id']}"
    if verb == "run":
        assert answer.headers["location"].startswith(f"{SEA}/schedule/runs?name=nightly&asked=")
        # The scheduler has begun it meanwhile: the same press, sent again, asks for no second run.
        query(database_url, "UPDATE scheduled_jobs SET requested_at = NULL RETURNING name")
    else:
        assert answer.headers["location"] == deed
    again = await asyncio.gather(*(browser.send(path, asked.fields, 303) for _ in range(3)))
    assert {it.headers["location"] for it in again} == {deed}
    done = await browser.open(deed)
    assert done.outcome == ("1", "0")
    assert (f"{SEA}/schedule/runs?name=nightly" in done.links) == (verb == "run")
    wanted = "SELECT name FROM scheduled_jobs WHERE requested_at IS NOT NULL"
    assert query(database_url, wanted) == []
    assert len(query(database_url, "SELECT * FROM audit_log")) == 1


async def test_what_is_paused_already_is_no_deed(api: Api, database_url: str) -> None:
    browser, path = Browser(api.client), f"{SEA}/schedule/pause"
    query(
        database_url, "INSERT INTO scheduled_jobs (name, schedule) VALUES ('nightly', '0 3 * * *') RETURNING name"
    )
    first, second = [await browser.open(path, name="nightly") for _ in range(2)]
    await browser.send(path, first.fields, 303)
    assert "It rests." in (await browser.send(path, second.fields)).text
    assert len(query(database_url, "SELECT * FROM audit_log")) == 1


async def test_the_form_of_one_act_on_a_job_is_not_for_another(api: Api, database_url: str) -> None:
    browser = Browser(api.client)
    query(
        database_url, "INSERT INTO scheduled_jobs (name, schedule) VALUES ('nightly', '0 3 * * *') RETURNING name"
    )
    asked = await browser.open(f"{SEA}/schedule/pause", name="nightly")
    await browser.send(f"{SEA}/schedule/run", asked.fields, 422)
    await browser.send(f"{SEA}/schedule/run", [("name", "nightly")], 422)
    assert query(database_url, "SELECT * FROM audit_log") == []


# --- parked keys ---


async def test_parked_keys_that_come_after_the_count_stay_parked(api: Api, database_url: str) -> None:
    browser = Browser(api.client)
    parked(database_url, "a", "b")
    dry = await api.post(f"{SEA}/parked/release", {"all": True, "dry_run": True})
    assert dry["count"] == 2
    parked(database_url, "c")
    done = await api.post(f"{SEA}/parked/release", {"selection": dry["selection"]})
    assert sorted(done["done"]) == ["from_upstream/a", "from_upstream/b"]
    again = await api.post(f"{SEA}/parked/release", {"selection": dry["selection"]}, 409)
    assert again["error"]["code"] == "SELECTION_USED"
    parked(database_url, "d")
    assert "Release all 2" in (await browser.open(f"{SEA}/parked")).text
    asked = await browser.open(f"{SEA}/parked/release", all="1")
    assert "Release 2 parked keys?" in asked.text
    parked(database_url, "e")
    assert (await browser.send(f"{SEA}/parked/release", asked.fields)).outcome == ("2", "0")
    assert (await browser.send(f"{SEA}/parked/release", asked.fields)).outcome == ("2", "0")
    assert [it["key"] for it in await api.get(f"{SEA}/parked")] == ["e"]


async def test_the_command_line_asks_about_the_keys_that_it_releases(tmp_path: Path, database_url: str) -> None:
    shell = Shell(tmp_path, database_url)
    parked(database_url, "a", "b")
    parked(database_url, "a", "b", "c", subscription="other")
    told = shell(
        *("parked", "release", "--all", "--subscription", "from_upstream", "--context", "sea"),
        answer="y\n",
        meanwhile=lambda: parked(database_url, "late"),
    )
    assert "2 keys of sea, subscription from_upstream, will be released" in told
    rows = query(database_url, "SELECT subscription, order_key FROM parked_keys ORDER BY 1, 2")
    left = [("from_upstream", "late"), *(("other", key) for key in "abc")]
    assert [(it["subscription"], it["order_key"]) for it in rows] == left


# --- undone ---


@pytest.mark.parametrize("action", ["discard", "resolve"])
async def test_undo_opens_any_number_again_as_one_act_and_nothing_runs(
    api: Api, database_url: str, action: str
) -> None:
    rows = Rows(database_url, KINDS["dead-letters"], KINDS["dead-letters"].action(action))
    browser, many = Browser(api.client), 150
    for n in range(many):
        rows.arrive(str(n))
    before = letters(database_url)
    asked = await browser.open(f"{SEA}/dead-letters/{action}", all="1")
    done = await browser.send(f"{SEA}/dead-letters/{action}", [*asked.fields, *NOTE])
    assert done.outcome == (str(many), "0")
    assert "Undo" in done.text
    undone = await browser.send(f"{SEA}/audit/{done.data('deed')}/undo", [])
    assert undone.outcome == (str(many), "0")
    assert letters(database_url) == before
    entries = query(database_url, "SELECT action, cardinality(ids) AS n, undoes FROM audit_log ORDER BY id")
    assert [(it["action"], it["n"]) for it in entries] == [(rows.word, many), ("dlq.reopen", many)]
    again = await api.post(f"{SEA}/audit/{done.data('deed')}/undo", {}, 409)
    assert again["error"]["code"] == "NOT_UNDOABLE"
    shown = await browser.open(f"{SEA}/audit/{done.data('deed')}")
    assert f"It was undone by act {undone.data('deed')}" in shown.text
    assert '<button class="quiet">Undo' not in shown.html


def letters(url: str) -> list[Any]:
    """All that tells of a dead letter, and of its message."""
    return query(
        url,
        "SELECT d.status, d.closed_at, d.closed_by, d.note, d.alerted_at, d.snoozed_until, i.requeues, i.attempts,"
        " i.enqueued_at, i.next_attempt_at, i.dead_lettered_at, i.stepped_over"
        " FROM dead_letters AS d JOIN inbox_messages AS i USING (message_id) ORDER BY d.id",
    )


async def test_undo_leaves_what_a_later_act_has_changed(api: Api, database_url: str) -> None:
    rows = Rows(database_url, KINDS["dead-letters"], KINDS["dead-letters"].action("discard"))
    ids = [int(rows.arrive(name)) for name in ("first", "second")]
    path = f"{SEA}/dead-letters"
    deed = (await api.post(f"{path}/discard", {"ids": ids, "note": "a slip"}))["deed"]
    await api.post(f"{path}/reopen", {"ids": ids[:1]})
    await api.post(f"{path}/discard", {"ids": ids[:1], "note": "meant"})
    undone = await api.post(f"{SEA}/audit/{deed}/undo", {})
    assert undone["done"] == [str(ids[1])]
    assert [it["error"]["code"] for it in undone["refused"]] == ["NOT_UNDOABLE"]
    assert [(await api.get(f"{path}/{id}"))["status"] for id in ids] == ["discarded", "open"]


async def test_a_cancelled_task_waits_again_with_its_time_and_attempts(
    api: Api, database_url: str, tmp_path: Path
) -> None:
    rows = Rows(database_url, KINDS["tasks"], KINDS["tasks"].action("cancel"))
    id = rows.arrive("first")
    query(
        database_url,
        "UPDATE task_outbox SET available_at = now() + interval '1 hour', attempts = 3 RETURNING id",
    )
    look = "SELECT status, available_at, attempts, finished_at, delivered_at, next_attempt_at FROM task_outbox"
    before = query(database_url, look)
    deed = (await api.post(f"{SEA}/tasks/cancel", {"ids": [id]}))["deed"]
    assert query(database_url, look) != before
    shell = Shell(tmp_path, database_url)
    assert "cancel" in shell("audit", "show", str(deed), "--context", "sea")
    assert shell("audit", "undo", str(deed), "--context", "sea") == "sea: undone 1\n"
    assert query(database_url, look) == before


async def test_what_has_had_effects_is_not_undone(api: Api, database_url: str) -> None:
    rows = Rows(database_url, KINDS["dead-letters"], KINDS["dead-letters"].action("requeue"))
    answer = await api.post(f"{SEA}/dead-letters/requeue", {"ids": [int(rows.arrive("first"))]})
    shown = await api.get(f"{SEA}/audit/{answer['deed']}")
    assert (shown["undo"], shown["count"], shown["actor"]) == (None, 1, "local")
    refused = await api.post(f"{SEA}/audit/{answer['deed']}/undo", {}, 409)
    assert refused["error"]["code"] == "NOT_UNDOABLE"
    assert (await api.post(f"{SEA}/audit/999/undo", {}, 404))["error"]["code"] == "NOTHING_FOUND"


async def test_an_answer_says_where_the_act_is_told_with_what_was_refused(api: Api, database_url: str) -> None:
    rows = Rows(database_url, KINDS["dead-letters"], KINDS["dead-letters"].action("requeue"))
    id = int(rows.arrive("first"))
    sent = {"ids": [id, 2**40], "note": "mended"}
    answer = await api.client.post(f"{api_path(rows)}/requeue", json=sent)
    deed = answer.json()["deed"]
    assert answer.headers["location"] == f"/api/v1{SEA}/audit/{deed}"
    shown = (await api.client.get(answer.headers["location"])).json()
    assert (shown["ids"], shown["note"], shown["refusals"]) == ([str(id)], "mended", 1)
    assert shown["refused"][0]["error"]["code"] == "UNKNOWN_INCIDENT"
