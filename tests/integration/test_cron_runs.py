"""Runs of cron jobs on a real database: each once, one at a time, failures on the path of the command."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from relay import RequestContext, failpoints
from relay.adapters.postgres.schedule import PostgresSchedule
from relay.cron.run import CronTimes
from relay.domain.errors import DatabaseUnreachable, DomainError
from relay.domain.facts import ScheduledRunFailed, ScheduledRunFinished, ScheduledRunRetried
from relay.domain.policies import unanswered
from relay.domain.reasons import code_of
from relay.domain.retry import Dead, Never, RetryLater
from relay.domain.schedule import ClaimedRun, Due, RunState, UnknownJob, WaitingRun
from relay.execution.retry_rules import RetryRule
from relay.failpoints import FailpointAction
from tests.integration.cron_bench import NOON, TICK, Bench, Work, benched
from tests.integration.publishing import query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[Bench]:
    async with benched(database_url) as bench:
        yield bench


# --- once ---


async def test_a_run_dispatches_its_command_in_a_chain_of_its_own(bench: Bench) -> None:
    seen: list[RequestContext] = []
    bench.handle = lambda _: seen.append(RequestContext.current())
    run = await bench.open()
    await bench.worker().run(run)
    row = bench.row()
    assert row["state"] == "finished"
    assert (row["attempts"], row["error"]) == (1, None)
    assert row["who"]
    assert row["started_at"] <= row["finished_at"]
    assert [context.correlation_id for context in seen] == [row["correlation_id"]]
    assert seen[0].causation_id is None
    assert seen[0].traceparent is None  # no spans are recorded
    assert isinstance(bench.facts[0], ScheduledRunFinished)
    assert RequestContext.current().correlation_id is None


async def test_however_often_it_is_sent_a_run_happens_once(bench: Bench) -> None:
    run = await bench.open()
    await asyncio.gather(*(bench.worker().run(run) for _ in range(8)))
    await bench.worker().run(run)
    assert len(bench.done) == 1


async def test_runs_of_a_job_are_never_under_way_together(bench: Bench) -> None:
    first = await bench.open()
    claimed = await bench.schedule.claim(first, uuid4(), "elsewhere")
    assert claimed is not None
    second = await bench.open(at=NOON + timedelta(minutes=1))
    await bench.worker().run(second)
    assert bench.done == []
    await bench.schedule.settle(claimed, RunState.FINISHED)
    await bench.worker().run(second)
    assert len(bench.done) == 1


async def test_the_database_itself_keeps_two_runs_of_a_job_apart(bench: Bench) -> None:
    """Two claims that do not see each other yet."""
    await bench.schedule.claim(await bench.open(), uuid4(), "elsewhere")
    second = await bench.open(at=NOON + timedelta(minutes=1))
    with pytest.raises(Exception, match="uq_scheduled_runs_started"):
        query(
            bench.url, "UPDATE scheduled_runs SET state = 'started' WHERE scheduled_for = %s", second.scheduled_for
        )


async def test_the_function_may_take_the_time_and_be_async(bench: Bench) -> None:
    threads: list[int] = []
    bench.handle = lambda command: (bench.done.append(command), threads.append(threading.get_ident()))

    async def later(at: datetime) -> Work:
        return Work(at=at)

    bench.declare("plain", lambda at: Work(at=at))
    bench.declare("async", later)
    for name in ("plain", "async"):
        await bench.worker().run(await bench.open(name))
    assert [command.at for command in bench.done] == [NOON, NOON]
    assert threads[0] != threading.get_ident()
    assert threads[1] == threading.get_ident()


# --- failures ---


async def test_a_command_that_refuses_has_failed_and_is_not_repeated(bench: Bench) -> None:
    def refuse(_: Work) -> None:
        raise DomainError("the books are closed")

    bench.handle = refuse
    await bench.worker().run(await bench.open())
    row = bench.row()
    assert (row["state"], row["error"]) == ("failed", "DOMAIN_ERROR: the books are closed")
    assert [type(fact) for fact in bench.facts] == [ScheduledRunFailed]
    assert await bench.schedule.waiting() == []


async def test_a_command_that_breaks_is_repeated_with_a_back_off_and_then_has_failed(bench: Bench) -> None:
    def broken(_: Work) -> None:
        raise OSError("disk full of s3crets")

    bench.handle = broken
    run = await bench.open()
    for attempt in (1, 2, 3):
        await eventually("it is due", lambda: _due(bench, run))
        await bench.worker().run(run)
        row = bench.row()
        assert row["attempts"] == attempt
        assert row["error"].startswith(f"OSError at {__name__}.broken:")
    assert row["state"] == "failed"
    kinds = [type(fact) for fact in bench.facts]
    assert kinds == [ScheduledRunRetried, ScheduledRunRetried, ScheduledRunFailed]


async def _due(bench: Bench, run: WaitingRun) -> bool:
    return run in await bench.schedule.waiting()


async def test_the_next_attempt_is_not_sent_before_its_time(bench: Bench) -> None:
    claimed = await bench.schedule.claim(await bench.open(), uuid4(), "me")
    assert claimed is not None
    await bench.schedule.settle(claimed, RunState.WAITING, "broken", timedelta(hours=1))
    assert await bench.schedule.waiting() == []


async def test_a_command_that_takes_too_long_counts_as_broken(bench: Bench) -> None:
    async def hang(_: Work) -> None:
        await asyncio.sleep(60)

    async def make() -> Work:
        return Work()

    bench.handle = hang
    bench.declare(function=make, time_limit=timedelta(milliseconds=50), max_attempts=1)
    await bench.worker().run(await bench.open())
    assert bench.row()["state"] == "failed"
    assert bench.row()["error"].startswith("longer than 0:00:00.05")


async def test_a_run_whose_worker_died_is_sent_again_and_not_for_ever(bench: Bench) -> None:
    run = await bench.open()
    for attempt in (1, 2, 3):
        claimed = await bench.schedule.claim(run, uuid4(), "dead")
        assert claimed is not None
        assert claimed.attempt == attempt
        query(bench.url, "UPDATE scheduled_runs SET claimed_until = now(), enqueued_at = now() - interval '1 s'")
        assert await bench.schedule.waiting() == [run]
    await bench.worker().run(run)
    assert bench.done == []
    assert (bench.row()["state"], bench.row()["error"]) == ("failed", unanswered(3).reason)


async def test_a_run_that_takes_long_keeps_its_claim(bench: Bench) -> None:
    bench.schedule.lease = timedelta(seconds=2)
    go_on = threading.Event()
    bench.handle = lambda _: go_on.wait(30)
    run = await bench.open()
    working = asyncio.create_task(bench.worker().run(run))
    await eventually("it started", lambda: bench.row()["state"] == "started")
    first = bench.row()["claimed_until"]
    await eventually(
        "the claim outlives its length", lambda: bench.row()["claimed_until"] > first + timedelta(seconds=2)
    )
    assert await bench.schedule.claim(run, uuid4(), "other") is None
    go_on.set()
    await working
    assert bench.row()["state"] == "finished"


async def test_a_run_whose_worker_loses_the_reply_to_its_claim_happens_once_the_claim_is_over(
    bench: Bench, tmp_path: Path
) -> None:
    failpoints.enable(tmp_path)
    failpoints.arm(tmp_path, "after_cron_claim", FailpointAction.LOST_REPLY)
    run = await bench.open()
    with pytest.raises(DatabaseUnreachable):
        await bench.worker().run(run)
    await bench.worker().run(run)
    assert bench.done == []
    query(bench.url, "UPDATE scheduled_runs SET claimed_until = now()")
    await bench.worker().run(run)
    assert (len(bench.done), bench.row()["attempts"]) == (1, 2)
    failpoints.enable(None)


async def test_who_lost_the_claim_records_nothing(bench: Bench) -> None:
    run = await bench.open()
    paused = await bench.schedule.claim(run, uuid4(), "paused")
    query(bench.url, "UPDATE scheduled_runs SET claimed_until = now() - interval '1 s'")
    other = await bench.schedule.claim(run, uuid4(), "other")
    assert paused is not None
    assert other is not None
    await bench.schedule.settle(paused, RunState.FAILED, "too late")
    assert bench.row()["state"] == "started"
    await bench.schedule.settle(other, RunState.FINISHED)
    assert (bench.row()["state"], bench.row()["who"]) == ("finished", "other")


async def test_an_outage_after_the_command_does_not_make_it_run_again(bench: Bench) -> None:
    class Away(PostgresSchedule):
        times = 3

        async def settle(self, run: ClaimedRun, *rest: Any, **more: Any) -> None:
            self.times -= 1
            if self.times >= 0:
                raise DatabaseUnreachable("away")
            await super().settle(run, *rest, **more)

    run = await bench.open()
    await bench.worker(Away(bench.schedule._source), CronTimes(pause=TICK)).run(run)
    assert bench.row()["state"] == "finished"
    assert len(bench.done) == 1


async def test_a_job_that_no_loaded_module_declares_is_left_for_a_worker_that_has_it(bench: Bench) -> None:
    run = await bench.open("elsewhere")
    with pytest.raises(UnknownJob, match="elsewhere") as caught:
        await bench.worker().run(run)
    assert "actor_modules" in str(caught.value)
    assert bench.row()["state"] == "waiting"


# --- pruning ---


async def test_what_is_old_is_forgotten_but_for_the_last_run_of_a_job(bench: Bench) -> None:
    for number in range(3):
        claimed = await bench.schedule.claim(await bench.open(at=NOON + number * TICK), uuid4(), "me")
        assert claimed is not None
        await bench.schedule.settle(claimed, RunState.FINISHED)
    await bench.open("waits")
    assert await bench.lease.open("waits", Due(NOON + TICK), uuid4()) is RunState.SKIPPED
    query(bench.url, "UPDATE scheduled_runs SET opened_at = now() - interval '31 days'")
    handled = "INSERT INTO processed_events VALUES (%s, gen_random_uuid(), now() - %s)"
    for name, age in (("old", timedelta(days=31)), ("new", timedelta(days=29))):
        query(bench.url, handled, name, age)
    removed = "INSERT INTO scheduled_jobs (name, schedule, removed_at) VALUES (%s, '', now() - %s)"
    for name, age in (("gone", timedelta(days=31)), ("just gone", timedelta(days=1))):
        query(bench.url, removed, name, age)
    await bench.schedule.prune()
    left = query(bench.url, "SELECT job, scheduled_for FROM scheduled_runs ORDER BY job, scheduled_for")
    assert [(row["job"], row["scheduled_for"]) for row in left] == [
        ("job", NOON + 2 * TICK),
        ("waits", NOON),
        ("waits", NOON + TICK),
    ]
    assert query(bench.url, "SELECT handler FROM processed_events") == [{"handler": "new"}]
    assert query(bench.url, "SELECT name FROM scheduled_jobs") == [{"name": "just gone"}]


async def test_pruning_takes_bites_until_all_is_gone(bench: Bench) -> None:
    for _ in range(5):
        query(
            bench.url,
            "INSERT INTO processed_events VALUES ('h', %s, now() - interval '31 days')",
            UUID(int=uuid4().int),
        )
    await bench.schedule.prune(rows=2)
    assert query(bench.url, "SELECT 1 FROM processed_events") == []


# --- the command says when, or a policy does ---


def asks(_command: Any) -> None:
    raise RetryLater("the bank is closed", delay=90)


async def tried(bench: Bench, run: WaitingRun) -> tuple[str, int, str]:
    """Make one attempt, whatever wait there is; returns the state, the attempts and the code of the error."""
    query(bench.url, "UPDATE scheduled_runs SET available_at = NULL")
    await bench.worker().run(run)
    row = bench.row(run.scheduled_for)
    return row["state"], row["attempts"], code_of(row["error"])


def wait_of(bench: Bench) -> float:
    [row] = query(bench.url, "SELECT extract(epoch FROM available_at - now())::float AS wait FROM scheduled_runs")
    return float(row["wait"])


async def test_a_command_that_asks_to_run_later_spends_no_attempt(bench: Bench) -> None:
    bench.handle = asks
    run = await bench.open(at=datetime.now(UTC))
    for _ in range(4):
        assert await tried(bench, run) == ("waiting", 0, "raised_RetryLater")
        assert 80 <= wait_of(bench) <= 90 * 1.2
    assert {fact.delay_seconds >= 90 for fact in bench.facts if isinstance(fact, ScheduledRunRetried)} == {True}


async def test_a_command_that_meets_a_lock_spends_no_attempt(bench: Bench) -> None:
    def meets(_command: Any) -> None:
        raise psycopg.errors.LockNotAvailable("held")

    bench.handle = meets
    run = await bench.open(at=datetime.now(UTC))
    for _ in range(4):
        assert await tried(bench, run) == ("waiting", 0, "raised_LockNotAvailable")
        assert wait_of(bench) <= 10


async def test_a_run_of_long_ago_that_asks_to_run_later_spends_its_attempts(bench: Bench) -> None:
    bench.handle = asks
    run = await bench.open()
    found = [await tried(bench, run) for _ in range(3)]
    assert [(state, attempts) for state, attempts, _ in found] == [("waiting", 1), ("waiting", 2), ("failed", 3)]


@pytest.mark.parametrize(
    ("says", "state", "wait"), [(40, "waiting", 40), (Never, "failed", None), (Dead, "failed", None)]
)
async def test_a_policy_decides_about_a_run(bench: Bench, says: Any, state: str, wait: float | None) -> None:
    asked: list[tuple[str, int]] = []

    def fail(_command: Any) -> None:
        raise KeyError("secret")

    def policy(error: Exception, attempt: int) -> Any:
        asked.append((type(error).__name__, attempt))
        return says

    bench.declare(retry=RetryRule(policy))
    bench.handle = fail
    run = await bench.open(at=datetime.now(UTC))
    assert await tried(bench, run) == (state, 1, "raised_KeyError")
    assert asked == [("KeyError", 1)]
    assert wait is None or wait - 10 <= wait_of(bench) <= wait
