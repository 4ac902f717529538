"""Leaders side by side on a real database: one runs the jobs, tells what it does, and another goes on after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from uuid import uuid4

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.schedule import PostgresLease, PostgresSchedule
from relay.bus import CommandBus
from relay.cron import Cron
from relay.cron.expression import Expression
from relay.domain.errors import DatabaseUnreachable
from relay.domain.facts import Fact, LeadLost, LeadTaken, OutageSeen
from relay.domain.operators import Operator
from relay.domain.schedule import WaitingRun
from scheduler.crons import CronTick
from scheduler.leader import Leader, Lease
from scheduler.polls import Pace
from scheduler.ticks import Tick
from scheduler.timer import IntervalTimer
from tests.integration.publishing import query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

TTL = timedelta(seconds=2)
OFTEN = timedelta(milliseconds=50)
HOURLY = timedelta(hours=1)
STEAL = "UPDATE scheduler_lease SET holder = gen_random_uuid(), who = 'thief', expires_at = now() + interval '1 h'"
RETURN = "UPDATE scheduler_lease SET expires_at = now()"


class One:
    """A scheduler's leader with two jobs that count, and what it tells."""

    def __init__(self, database_url: str, crons: list[Cron], ttl: timedelta, name: str) -> None:
        self.pool: Pool = Pool(database_url, max_size=4, application_name=name)
        self.pool.timeout = 0.5
        self.facts: list[Fact] = []
        self.ticks: dict[str, int] = {"often": 0, "hourly": 0}
        self.taken_over = self.rested = 0
        self.ahead = timedelta()
        self.sent: list[WaitingRun] = []
        self.broken: Exception | None = None
        self.hang: asyncio.Event | None = None
        self.hanging = 0
        store = PostgresLease(self.pool.connection, uuid4(), name)
        self.lease = Lease(store, ttl)
        self.schedule = PostgresSchedule(self.pool.connection)
        self.engine = AsyncIOScheduler(timezone=UTC)
        self.pace = Pace(OFTEN)
        self.crons = CronTick("sea", crons, store, self.schedule, self.send, self.facts.append)
        jobs = [
            Tick("often", OFTEN, self.tick("often"), self.take_over, pace=self.pace),
            Tick("hourly", HOURLY, self.tick("hourly")),
            Tick("crons", OFTEN, self.crons.tick, self.crons.forget),
        ]
        self.leader = Leader(
            "sea",
            jobs,
            self.crons,
            self.lease,
            self.schedule,
            IntervalTimer(self.engine, now=lambda: datetime.now(UTC) + self.ahead),
            self.facts.append,
            self.release,
        )

    def tick(self, name: str) -> Any:
        async def run() -> None:
            self.ticks[name] += 1
            if self.hang and name == "often":
                self.hanging += 1
                try:
                    await self.hang.wait()
                finally:
                    self.hanging -= 1
            if self.broken:
                raise self.broken

        return run

    def take_over(self) -> None:
        self.taken_over += 1

    async def release(self) -> None:
        self.rested += 1

    async def send(self, runs: Any) -> None:
        self.sent += runs

    def said(self, kind: type[Fact]) -> int:
        return sum(isinstance(fact, kind) for fact in self.facts)


@asynccontextmanager
async def leading(database_url: str, *crons: Cron, ttl: timedelta = TTL, name: str = "one") -> AsyncIterator[One]:
    one = One(database_url, list(crons), ttl, name)
    await one.pool.open()
    one.engine.start()
    task = asyncio.create_task(one.leader.run())
    try:
        yield one
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await one.leader.stop()
        one.engine.shutdown(wait=False)
        await one.pool.close()


def job(name: str = "nightly", expression: str = "0 3 * * *") -> Cron:
    return Cron(
        name=name,
        expression=Expression(expression),
        function=lambda: None,
        bus=CommandBus(),
        context=None,
        misfire_grace=timedelta(days=1),
        time_limit=HOURLY,
        max_attempts=3,
    )


async def test_one_of_two_runs_the_jobs_and_when_it_stops_the_other_goes_on_at_once(database_url: str) -> None:
    long = timedelta(seconds=60)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(leading(database_url, ttl=long, name="first"))
        await eventually("the first leads", lambda: first.ticks["often"] > 3)
        async with leading(database_url, ttl=long, name="second") as second:
            await eventually("the second has looked", lambda: second.lease.pause > 0)
            await stack.aclose()
            assert second.ticks["often"] == 0
            await eventually("the second leads", lambda: second.ticks["often"] > 3, seconds=30)
            assert second.taken_over == 1


async def test_who_loses_the_lead_stops_lets_go_and_may_lead_again(database_url: str) -> None:
    async with leading(database_url) as one:
        await eventually("it leads", lambda: one.ticks["often"] > 3)
        query(database_url, STEAL)
        await eventually("it has noticed", lambda: one.said(LeadLost) == 1 and one.rested == 1)
        before = dict(one.ticks)
        await asyncio.sleep(4 * OFTEN.total_seconds())
        assert one.ticks == before
        query(database_url, RETURN)
        await eventually("it leads again", lambda: one.ticks["often"] > before["often"] + 3)
        assert one.taken_over == 2
        # The first tick comes with the lead, however rare the job is.
        assert one.ticks["hourly"] == 2


async def test_without_a_valid_lease_a_tick_that_is_due_does_nothing(database_url: str) -> None:
    """What a process does first when it goes on after a pause, before it has asked the database."""
    async with leading(database_url) as one:
        await eventually("it leads", lambda: one.ticks["often"] > 3)
        one.lease._until = 0.0
        before = one.ticks["often"]
        await asyncio.sleep(3 * OFTEN.total_seconds())
        assert one.ticks["often"] <= before + 1  # one may have been under way


async def test_a_database_without_our_tables_is_waited_for(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    query(database_url, "ALTER TABLE scheduler_lease RENAME TO hidden")
    async with leading(database_url) as one:
        await eventually("it says so", lambda: "SCHEMA_MISSING" in caplog.text)
        await asyncio.sleep(3 * one.lease.pause)
        query(database_url, "ALTER TABLE hidden RENAME TO scheduler_lease")
        await eventually("it leads", lambda: one.ticks["often"] > 1)
    assert caplog.text.count("SCHEMA_MISSING") == 1


async def test_a_database_that_is_away_is_an_outage_and_no_end(database_url: str) -> None:
    async with leading("postgresql://127.0.0.1:9/sea") as one:
        await eventually("it says so, and again", lambda: one.said(OutageSeen) > 1)
    async with leading(database_url) as one:
        await eventually("another context has its leader", lambda: one.ticks["often"] > 0)


async def test_a_tick_that_raises_is_told_and_comes_again(database_url: str) -> None:
    async with leading(database_url) as one:
        one.broken = ValueError("no such thing")
        await eventually("it went on", lambda: one.ticks["often"] > 3)
        await one.leader._report()
        [row] = query(database_url, "SELECT error FROM scheduled_jobs WHERE name = 'often'")
        assert row["error"] == "ValueError: no such thing"
        one.broken = None
        before = one.ticks["often"]
        await eventually("it went well", lambda: one.ticks["often"] > before + 1)
        await one.leader._report()
        assert query(database_url, "SELECT error FROM scheduled_jobs WHERE name = 'often'") == [{"error": None}]


async def test_a_tick_whose_database_is_away_tells_of_the_outage(database_url: str) -> None:
    async with leading(database_url) as one:
        one.broken = DatabaseUnreachable("gone")
        told = OutageSeen(context="sea", server="postgresql", error="gone")
        await eventually("it says so", lambda: told in one.facts)


async def test_no_second_tick_starts_while_one_hangs(database_url: str) -> None:
    async with leading(database_url) as one:
        go_on = one.hang = asyncio.Event()
        await eventually("one hangs", lambda: one.hanging == 1)
        fired = one.leader._rounds
        await eventually("others were due", lambda: one.leader._rounds > fired + 1)
        assert one.hanging <= 1
        one.hang = None
        before = one.ticks["often"]
        go_on.set()
        await eventually("it goes on", lambda: one.ticks["often"] > before + 1)


# --- the clock ---


async def test_all_ticks_fall_on_the_same_instants(database_url: str) -> None:
    """However far apart the contexts took their leads. Every wake-up costs more than a tick."""
    async with leading(database_url) as one:
        await eventually("it leads", lambda: one.ticks["hourly"] == 1)
        assert {job.id: job.next_run_time.microsecond % 50_000 for job in one.engine.get_jobs()} == {
            "every 0.05 s": 0,
            "every 3600 s": 0,
        }


async def test_a_tick_that_has_nothing_to_do_is_called_less_often_until_it_has(database_url: str) -> None:
    async with leading(database_url) as one:
        await eventually("it leads", lambda: one.ticks["often"] > 3)
        one.pace.quiet = HOURLY
        one.pace.set(quiet=True)
        assert {job.id for job in one.engine.get_jobs()} == {"every 0.05 s", "every 3600 s"}
        assert one.leader._fires["often"][0] == HOURLY
        before = one.ticks["often"]
        await asyncio.sleep(4 * OFTEN.total_seconds())
        assert one.ticks["often"] <= before + 1  # one may have been under way
        one.pace.set(quiet=False)
        await eventually("it is called as often as before", lambda: one.ticks["often"] > before + 4)


async def test_an_interval_that_no_tick_has_any_more_is_not_fired(database_url: str) -> None:
    async with leading(database_url) as one:
        await eventually("it leads", lambda: one.ticks["often"] > 3)
        query(database_url, STEAL)
        await eventually("it has noticed", lambda: one.said(LeadLost) == 1)
        assert one.engine.get_jobs() == []


async def test_ticks_go_on_when_the_clock_of_the_machine_is_set_back(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(database_url) as one:
        await eventually("it leads", lambda: one.ticks["often"] > 3)

        class Back(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return datetime.now(tz) - HOURLY

        monkeypatch.setattr("apscheduler.schedulers.base.datetime", Back)
        one.ahead = -HOURLY
        before = one.ticks["often"]
        await eventually("it ticks by the new time", lambda: one.ticks["often"] > before + 3)


# --- what operators see and ask for ---


async def test_the_table_tells_what_is_scheduled_and_when_it_ran(database_url: str) -> None:
    async with leading(database_url, job()) as one:
        await eventually("it has ticked", lambda: one.ticks["hourly"] == 1)
        await one.leader._report()
        found = await one.schedule.schedule()
    assert found.leader == "one"
    rows = {view.name: view for view in found.jobs}
    assert rows.keys() == {"often", "hourly", "crons", "nightly"}
    assert rows["hourly"].schedule == "every 3600 s"
    assert rows["often"].schedule == "every 0.05 s, quiet 2 s"
    assert rows["nightly"].schedule == "0 3 * * * UTC"
    last, following = rows["hourly"].last_run_at, rows["hourly"].next_run_at
    assert last is not None
    assert following is not None
    assert timedelta(minutes=59) < following - last < timedelta(minutes=61)
    assert rows["nightly"].last_run_at is None
    assert rows["nightly"].next_run_at == Expression("0 3 * * *").after(datetime.now(UTC))


async def test_what_the_next_leader_does_not_schedule_is_listed_no_more(database_url: str) -> None:
    async with leading(database_url, job("gone"), job("stays")) as one:
        await eventually("it leads", lambda: one.said(LeadTaken) == 1)
    async with leading(database_url, job("stays")) as one:
        await eventually("it leads", lambda: one.said(LeadTaken) == 1)
        names = [view.name for view in (await one.schedule.schedule()).jobs]
    assert names == ["crons", "hourly", "often", "stays"]


async def test_a_request_runs_a_job_out_of_turn_once(database_url: str) -> None:
    async with leading(database_url, job()) as one:
        await eventually("it leads", lambda: one.ticks["hourly"] == 1)
        requested = await one.schedule.request("hourly", Operator("me"))
        await eventually("it ran", lambda: one.ticks["hourly"] == 2)
        await one.schedule.request("nightly", Operator("me"))
        await eventually("it is sent", lambda: len(one.sent) == 1)
        assert await one.schedule.request("no such job", Operator("me")) is None
        await eventually(
            "answered",
            lambda: not query(database_url, "SELECT 1 FROM scheduled_jobs WHERE requested_at IS NOT NULL"),
        )
    assert requested is not None
    assert one.ticks["hourly"] == 2
    assert len(query(database_url, "SELECT 1 FROM scheduled_runs")) == 1
    audit = query(database_url, "SELECT actor, action, ids FROM audit_log ORDER BY id")
    assert audit == [
        {"actor": "me", "action": "schedule run", "ids": ["hourly"]},
        {"actor": "me", "action": "schedule run", "ids": ["nightly"]},
    ]


# --- cron jobs ---


async def test_a_new_job_is_not_due_and_one_that_fired_before_is_made_up_for_once(database_url: str) -> None:
    async with leading(database_url, job(), job("yearly", "0 0 1 1 *")) as one:
        await eventually("it has looked", lambda: one.crons._next is not None)
        assert query(database_url, "SELECT 1 FROM scheduled_runs") == []
        query(
            database_url,
            "UPDATE scheduled_jobs SET registered_at = now() - interval '3 days' WHERE name = 'nightly'",
        )
        one.crons.forget()
        await eventually("it is sent", lambda: len(one.sent) == 1)
        one.crons.forget()
        await asyncio.sleep(4 * OFTEN.total_seconds())
    [run] = query(database_url, "SELECT job, scheduled_for, state FROM scheduled_runs")
    assert (run["job"], run["state"]) == ("nightly", "waiting")
    assert Expression("0 3 * * *").after(run["scheduled_for"]) > datetime.now(UTC)
    assert one.sent == [WaitingRun("nightly", run["scheduled_for"])]


async def test_a_job_that_comes_back_with_another_schedule_starts_anew(database_url: str) -> None:
    async with leading(database_url, job()) as one:
        await eventually("it leads", lambda: one.said(LeadTaken) == 1)
    query(database_url, "UPDATE scheduled_jobs SET registered_at = now() - interval '3 days'")
    async with leading(database_url, job(expression="0 4 * * *")) as one:
        await eventually("it has looked", lambda: one.crons._next is not None)
        assert one.sent == []


async def test_a_run_that_nobody_takes_up_is_sent_again_though_not_at_once(database_url: str) -> None:
    async with leading(database_url, job()) as one:
        await eventually("it leads", lambda: one.said(LeadTaken) == 1)
        await one.schedule.request("nightly", Operator("me"))
        await eventually("it is sent", lambda: len(one.sent) == 1)
        one.crons.forget()
        await asyncio.sleep(4 * OFTEN.total_seconds())
        assert len(one.sent) == 1
        query(database_url, "UPDATE scheduled_runs SET enqueued_at = now() - interval '11 s'")
        one.crons.forget()
        await eventually("it is sent again", lambda: len(one.sent) == 2)


async def test_a_run_that_could_not_be_opened_is_looked_at_again_at_the_next_tick(database_url: str) -> None:
    async with leading(database_url, job()) as one:
        await eventually("it has looked", lambda: one.crons._next is not None)
        query(database_url, "UPDATE scheduled_jobs SET registered_at = now() - interval '3 days'")
        query(database_url, STEAL)
        one.crons.forget()
        await one.crons.tick()
        assert (one.crons._next, one.sent) == (None, [])
        query(database_url, RETURN)
        await eventually("it is sent after all", lambda: len(one.sent) == 1)
