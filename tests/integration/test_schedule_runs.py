"""The runs of cron jobs, and who leads, as operators see them: command line, HTTP and console."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest

from relay.devstack import NatsServer, ValkeyServer
from relay.domain.errors import DomainError
from relay.domain.operators import Operator
from relay.domain.schedule import JobView, how_it_went
from tests.integration.console_pages import Browser
from tests.integration.cron_bench import Bench, Work, benched
from tests.integration.ops_api import Api, configured, serving
from tests.integration.publishing import query
from tests.integration.test_cli_operating import SEA, Shell
from tests.integration.test_scheduler_leader import One, job, leading
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

JOB = "nightly"
SCHEDULE = "/contexts/sea/schedule"
STATES = ("finished", "failed", "skipped", "missed", "started", "waiting")


@pytest.fixture
async def api(database_url: str, nats_server: NatsServer, valkey: ValkeyServer) -> AsyncIterator[Api]:
    async with serving(configured(database_url, nats_server.url, valkey.url)) as api:
        yield api


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[Bench]:
    async with benched(database_url) as bench:
        bench.declare(JOB)
        yield bench


@pytest.fixture
def shell(tmp_path: Path, database_url: str) -> Shell:
    return Shell(tmp_path, database_url)


def scheduled(url: str, *names: str, schedule: str = "0 3 * * *") -> None:
    for name in names:
        query(url, "INSERT INTO scheduled_jobs (name, schedule) VALUES (%s, %s) RETURNING name", name, schedule)


def ran(url: str, name: str, at: datetime, state: str, error: str | None = None) -> str:
    """A run in a state, as workers leave it. Returns its correlation."""
    begun, ended = state not in ("waiting", "skipped", "missed"), state in ("finished", "failed")
    [row] = query(
        url,
        """
        INSERT INTO scheduled_runs (job, scheduled_for, opened_at, state, correlation_id, attempts, error, who,
            started_at, finished_at, claim_token, claimed_until)
        VALUES (%s, %s, %s, %s, %s, %s, %s, CASE WHEN %s THEN 'host:1' END, CASE WHEN %s THEN %s::timestamptz END,
            CASE WHEN %s THEN %s::timestamptz + interval '90 s' END, CASE WHEN %s THEN gen_random_uuid() END,
            CASE WHEN %s THEN now() + interval '1 hour' END)
        RETURNING correlation_id::text AS id
        """,
        *(name, at, at, state, uuid4(), int(begun), error, begun, begun, at, ended, at),
        *(state == "started", state == "started"),
    )
    return str(row["id"])


async def asked_of(api: Api, at: datetime, name: str = JOB) -> Any:
    return await api.get(f"{SCHEDULE}/{name}/runs?{urlencode({'scheduled_for': at.isoformat()})}")


def running_page(at: datetime, name: str = JOB) -> str:
    return f"{SCHEDULE}/runs?{urlencode({'name': name, 'asked': at.isoformat()})}"


# --- the last runs ---


async def test_the_last_20_runs_of_a_job_in_all_states_are_listed_with_their_lives(
    api: Api, shell: Shell, database_url: str
) -> None:
    scheduled(database_url, JOB, "other")
    now = datetime.now(UTC)
    lives = []
    for n in range(23):
        # One run of a job goes on at most; the others have ended in one of the four ways.
        state = STATES[n % 4] if n else "started"
        error = "ORACLE: no answer" if state == "failed" else None
        lives.append(ran(database_url, JOB, now - timedelta(days=n), state, error))
    ran(database_url, "other", now, "finished")
    listed = await api.get(f"{SCHEDULE}/{JOB}/runs")
    assert [it["correlation_id"] for it in listed] == lives[:20]
    assert {it["state"]: it["seconds"] for it in listed} == {
        **dict.fromkeys(("started", "skipped", "missed")),
        **dict.fromkeys(("finished", "failed"), 90.0),
    }
    typed = shell.json("schedule", "runs", JOB, *SEA)
    assert [it["correlation_id"] for it in typed] == lives[:20]
    assert len(shell.json("schedule", "runs", JOB, "--limit", "100", *SEA)) == 23
    narrow = shell("schedule", "runs", JOB, *SEA, width=80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert all(life in narrow for life in lives[:20])
    page = await Browser(api.client).open(f"{SCHEDULE}/runs", name=JOB)
    for life in lives[:20]:
        assert f"/explain?id={life}" in page.links
        assert JOB in (await Browser(api.client).open("/explain", id=life)).text
    assert not any(f"id={life}" in link for life in lives[20:] for link in page.links)
    assert "ORACLE: no answer" in page.text
    assert JOB in shell("explain", lives[1], status=1)  # quiet cannot be read


async def test_a_job_without_runs_and_one_that_does_not_exist_are_told_apart(
    api: Api, shell: Shell, database_url: str
) -> None:
    scheduled(database_url, JOB)
    scheduled(database_url, "publish:sea", schedule="every 1 s")
    for name in (JOB, "publish:sea"):
        assert await api.get(f"{SCHEDULE}/{name}/runs") == []
        assert "has no runs on record" in shell("schedule", "runs", name, *SEA)
        await Browser(api.client).open(f"{SCHEDULE}/runs", name=name)
    assert (await api.get(f"{SCHEDULE}/typo/runs", 404))["error"]["code"] == "UNKNOWN_JOB"
    assert "UNKNOWN_JOB" in shell("schedule", "runs", "typo", *SEA, status=1)
    assert "UNKNOWN_JOB" in (await Browser(api.client).open(f"{SCHEDULE}/runs", 404, name="typo")).text


# --- run now ---


async def begins(one: One, bench: Bench) -> None:
    """Wait until the leader sends a run, and do what a worker does with it."""
    await eventually("it is sent", lambda: len(one.sent) == 1)
    await bench.worker().run(one.sent.pop())


def refuse(_: Work) -> None:
    raise DomainError("the ledger is closed")


@pytest.mark.parametrize(("handle", "state"), [(None, "finished"), (refuse, "failed")])
async def test_a_run_that_was_asked_for_is_told_in_every_face(
    api: Api, bench: Bench, shell: Shell, database_url: str, handle: Any, state: str
) -> None:
    bench.handle = handle or bench.handle
    browser = Browser(api.client)
    async with leading(database_url, job()) as one:
        await eventually("it leads", lambda: one.ticks["hourly"] == 1)
        # Over HTTP: the answer says where to look, and nothing is there before it has begun.
        asked = await api.post(f"{SCHEDULE}/{JOB}/run", {"note": "now"}, 202)
        at = datetime.fromisoformat(asked["requested_at"])
        await begins(one, bench)
        [run] = await api.get(asked["runs"].removeprefix("/api/v1"))
        assert (run["state"], run["scheduled_for"]) == (state, asked["requested_at"])
        assert await asked_of(api, at) == [run]
        # In the console: the form leads to a page that tells it.
        form = await browser.open(f"{SCHEDULE}/run", name=JOB)
        to = (await browser.send(f"{SCHEDULE}/run", form.fields, 303)).headers["location"]
        while to.startswith("/contexts/sea/audit/"):
            to = next(link for link in (await browser.open(to)).links if "schedule/runs" in link)
        assert "not begun yet" in (await browser.open(to)).text
        await begins(one, bench)
        told = (await browser.open(to)).text.partition("Asked for")[2].partition("Due")[0]
        assert state in told
        assert ("the ledger is closed" in told) == (state == "failed")
        # On the command line: it waits for the end, and its status is that of the run.
        typed = asyncio.create_task(
            asyncio.to_thread(shell, "schedule", "run", JOB, *SEA, status=int(state == "failed"))
        )
        await begins(one, bench)
        line = await typed
    [last, *_] = await api.get(f"{SCHEDULE}/{JOB}/runs")
    assert f"sea: {JOB} {state}" in line
    assert f"relay explain {last['correlation_id']}" in line


async def test_a_run_that_is_asked_for_again_is_the_same_one(api: Api, database_url: str) -> None:
    scheduled(database_url, JOB)
    first, second = [await api.post(f"{SCHEDULE}/{JOB}/run", {}, 202) for _ in range(2)]
    assert first["requested_at"] == second["requested_at"]


@pytest.mark.parametrize("state", ["waiting", "started", "finished", "failed"])
@pytest.mark.parametrize("how", ["skipped", "overtaken"])
async def test_a_run_that_another_one_stands_for_is_told_as_that_one(
    api: Api, shell: Shell, database_url: str, how: str, state: str
) -> None:
    """The run before it had not started yet and counts for both; or the job was due before the leader saw it."""
    scheduled(database_url, JOB)
    now = datetime.now(UTC)
    ran(database_url, JOB, now - timedelta(hours=2), "finished")
    if how == "skipped":
        life = ran(database_url, JOB, now - timedelta(hours=1), state)
        ran(database_url, JOB, now, "skipped")
    else:
        life = ran(database_url, JOB, now + timedelta(milliseconds=1), state)
    ran(database_url, JOB, now + timedelta(hours=1), "missed")
    assert [(it["correlation_id"], it["state"]) for it in await asked_of(api, now)] == [(life, state)]
    told = (await Browser(api.client).open(running_page(now))).text.partition("Asked for")[2].partition("Due")[0]
    assert state in told


async def test_however_many_runs_came_since_the_one_that_was_asked_for_is_found(
    api: Api, database_url: str
) -> None:
    scheduled(database_url, JOB)
    now = datetime.now(UTC)
    life = ran(database_url, JOB, now, "failed", "CLOSED: the ledger is closed")
    for n in range(120):
        ran(database_url, JOB, now + timedelta(minutes=n + 1), "finished")
    assert [it["correlation_id"] for it in await asked_of(api, now)] == [life]
    assert "the ledger is closed" in (await Browser(api.client).open(running_page(now))).text


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("schedule", "last", "requested", "error", "told"),
    [
        ("every 1 s", None, None, None, None),
        ("every 1 s", NOW - timedelta(seconds=1), None, None, None),
        ("every 1 s", LATER, NOW, None, None),
        ("every 1 s", LATER, None, None, "finished"),
        ("every 1 s", LATER, None, "NATS does not answer", "failed"),
        # An older run of a cron job, tried again meanwhile, is no answer.
        ("0 3 * * *", LATER, None, None, None),
        ("0 3 * * *", LATER, None, "CLOSED", None),
    ],
)
def test_a_duty_is_told_by_its_last_time_and_a_cron_job_only_by_its_run(
    schedule: str, last: datetime | None, requested: datetime | None, error: str | None, told: str | None
) -> None:
    view = JobView(
        name=JOB,
        schedule=schedule,
        last_run_at=last,
        outcome=None,
        error=error,
        next_run_at=None,
        requested_at=requested,
    )
    went = how_it_went(view, None, NOW)
    assert (None if went is None else went[0].value) == told


async def test_a_duty_that_was_asked_for_is_told(api: Api, shell: Shell, database_url: str) -> None:
    async with leading(database_url, job()) as one:
        await eventually("it leads", lambda: one.ticks["hourly"] == 1)
        assert await asyncio.to_thread(shell, "schedule", "run", "hourly", *SEA) == "sea: hourly ran\n"
        at = await one.schedule.request("hourly", Operator("me"))
        assert at is not None
        answered = "SELECT 1 FROM scheduled_jobs WHERE requested_at IS NOT NULL"
        await eventually("it is answered", lambda: not query(database_url, answered))
        assert "finished" in (await Browser(api.client).open(running_page(at, "hourly"))).text


# --- duties and schedulers ---


async def test_duties_of_the_relay_are_folded_unless_they_fail(api: Api, shell: Shell, database_url: str) -> None:
    scheduled(database_url, JOB)
    scheduled(database_url, "publish:sea", "prune:sea", schedule="every 1 s")
    browser = Browser(api.client)

    async def folded() -> bool:
        page = await browser.open(SCHEDULE)
        assert page.text.index(JOB) < page.text.index("2 duties of the relay") < page.text.index("prune:sea")
        return next(
            "open" not in found for tag, found in page.tags if tag == "details" and found.get("class") == "next"
        )

    assert await folded()
    listed = shell("schedule", "list", *SEA)
    assert (JOB in listed, "prune:sea" in listed) == (True, False)
    assert "2 duties of the relay go well" in listed
    assert "prune:sea" in shell("schedule", "list", "--duties", *SEA)
    failed = "UPDATE scheduled_jobs SET error = 'NATS does not answer' WHERE name = 'prune:sea' RETURNING name"
    query(database_url, failed)
    assert not await folded()
    listed = shell("schedule", "list", *SEA)
    assert ("prune:sea" in listed, "publish:sea" in listed) == (True, False)


async def test_the_fleet_says_which_scheduler_leads_and_where_none_does(api: Api, database_url: str) -> None:
    browser = Browser(api.client)
    assert "sea no scheduler leads" in (await browser.open("/fleet")).text
    async with leading(database_url, name="host-7:42") as one:
        await eventually("it leads", lambda: one.ticks["hourly"] == 1)
        assert "sea host-7:42 leads" in (await browser.open("/fleet")).text
