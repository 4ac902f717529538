"""The scheduler's ticks on real servers: one job outstanding per duty, hints at once, outages waited out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from consumer.recovery import RecoveryLimits
from relay.adapters.dramatiq.gates import GateTimes
from relay.adapters.members import this_process
from relay.devstack import PostgresServer, ValkeyServer
from relay.domain.errors import DatabaseUnreachable
from relay.domain.facts import OutageSeen
from relay.domain.members import State
from scheduler.polls import PollLimits
from tests.integration.publishing import query
from tests.integration.scheduling import Scheduler, scheduling
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def scheduler(
    request: pytest.FixtureRequest, tmp_path: Path, database_url: str, valkey: ValkeyServer
) -> AsyncIterator[Scheduler]:
    async with scheduling(tmp_path, database_url, valkey.url, **getattr(request, "param", {})) as scheduler:
        yield scheduler


def given(**options: Any) -> pytest.MarkDecorator:
    """The limits of polls, or the times of gates, of the scheduler of a test."""
    return pytest.mark.parametrize("scheduler", [options], indirect=True, ids=["given"])


# --- publishing ---


async def test_while_nothing_is_due_nothing_is_enqueued_and_hints_are_welcome(scheduler: Scheduler) -> None:
    assert not scheduler.sleeping()
    await scheduler.tick()
    assert scheduler.sent() == []
    assert scheduler.sleeping()


async def test_what_is_due_brings_one_job_per_shard_and_no_other_until_it_has_ended(
    scheduler: Scheduler,
) -> None:
    scheduler.produce(20)
    for _ in range(5):
        await scheduler.tick()
    assert sorted(scheduler.sent()) == [("sea", 0), ("sea", 1)]
    first = next(message for message in scheduler.messages() if message.args[1] == 0)
    await scheduler.application.gates.close("publish:sea:0", first.args[2])
    for _ in range(5):
        await scheduler.tick()
    assert sorted(scheduler.sent()) == [("sea", 0), ("sea", 0), ("sea", 1)]


async def test_a_backlog_brings_as_many_jobs_as_there_are_workers_for(scheduler: Scheduler) -> None:
    """What little is due is left to as many as configured, as every job costs something."""
    members, gates = scheduler.application.members, scheduler.application.gates
    for number in range(3):
        await members.beat(replace(this_process("worker", f"w{number}"), publishes=True))
    scheduler.produce(20)
    await scheduler.tick()
    assert sorted(scheduler.sent()) == [("sea", 0), ("sea", 1)]
    scheduler.produce(100)
    for _ in range(3):
        await scheduler.tick()
    assert sorted(scheduler.sent()) == [("sea", 0), ("sea", 1), *(("sea", shard, 6) for shard in (2, 3, 4, 5))]
    for message in scheduler.messages()[:2]:
        await gates.close(f"publish:sea:{message.args[1]}", message.args[-1])
    await scheduler.tick()
    assert sorted(it for it in scheduler.sent() if len(it) == 3) == [("sea", shard, 6) for shard in range(6)]
    for number in range(3):
        await members.leave(this_process("worker", f"w{number}"))


async def test_an_event_brings_a_job_for_the_shard_of_its_key_and_no_other(scheduler: Scheduler) -> None:
    """Of each key alone, as every job costs a worker something."""
    await scheduler.tick()
    await eventually("it listens and has looked", lambda: scheduler.polls >= 2)
    query(scheduler.database_url, "ALTER TABLE outbox_events DISABLE TRIGGER relay_wake_publisher")
    expected = []
    for key in ("v1", "v2", "v3", "v4", "v5", "v6", None):
        scheduler.add(key)
        [row] = query(scheduler.database_url, "SELECT hashtext(partition_key) & 1 AS shard FROM outbox_events")
        expected.append(("sea", row["shard"]))
        await scheduler.tick()
        assert scheduler.sent() == expected
        last = scheduler.messages()[-1]
        await scheduler.application.gates.close(f"publish:sea:{last.args[1]}", last.args[2])
        query(scheduler.database_url, "DELETE FROM outbox_events")
    assert len(set(expected)) == 2


@given(limits=PollLimits(load_events=3))
async def test_when_there_are_many_events_every_shard_has_a_job(scheduler: Scheduler) -> None:
    """Not all of them were looked at."""
    for _ in range(3):
        scheduler.add("v1")
    await scheduler.tick()
    assert sorted(scheduler.sent()) == [("sea", 0), ("sea", 1)]


async def test_events_that_are_dead_or_delayed_are_not_due(scheduler: Scheduler) -> None:
    scheduler.produce(2)
    with psycopg.connect(scheduler.database_url) as connection:
        connection.execute("UPDATE outbox_events SET dead_at = now() WHERE aggregate_id = 'v0'")
        connection.execute("UPDATE outbox_events SET available_at = now() + interval '1 h' WHERE dead_at IS NULL")
    await scheduler.tick()
    assert scheduler.sent() == []
    query(scheduler.database_url, "UPDATE outbox_events SET available_at = now() WHERE dead_at IS NULL")
    await scheduler.tick()
    assert len(scheduler.sent()) == 1


async def test_a_hint_runs_the_tick_at_once(scheduler: Scheduler) -> None:
    """The next poll would come in an hour."""
    await scheduler.tick()
    await eventually("it listens and has looked", lambda: scheduler.polls >= 2)
    assert scheduler.sent() == []
    scheduler.produce()
    await eventually("the jobs are sent", lambda: len(scheduler.sent()) == 2)


async def somebody_listens(scheduler: Scheduler) -> None:
    """A worker says so, and does nothing: it hangs."""
    worker = replace(this_process("worker", "one"), state=State.WORKING, publishes=True, listens=["sea"])
    await scheduler.application.members.beat(worker)
    await scheduler.tick()
    await eventually("hints are welcome", scheduler.sleeping)


@given(limits=PollLimits(left_to_workers=3600.0))
async def test_a_hint_is_left_to_the_worker_that_hears_it_and_a_tick_is_not(scheduler: Scheduler) -> None:
    await somebody_listens(scheduler)
    await scheduler.tick("deliver_tasks:sea")
    scheduler.produce()
    scheduler.schedule()
    await eventually("a later hint has come", lambda: scheduler.sent("relay-upkeep") == [("sea",)])
    assert scheduler.sent() == []
    await scheduler.tick()
    assert len(scheduler.sent()) == 2


@given(limits=PollLimits(left_to_workers=0.05))
async def test_what_that_worker_does_not_do_in_a_moment_jobs_do(scheduler: Scheduler) -> None:
    """The next tick would come in an hour."""
    await somebody_listens(scheduler)
    scheduler.produce()
    await eventually("the jobs are sent", lambda: len(scheduler.sent()) == 2)


@given(limits=PollLimits(load_events=10, awake_for=0.1))
async def test_under_load_no_transaction_pays_for_a_hint(scheduler: Scheduler) -> None:
    await scheduler.tick()
    assert scheduler.sleeping()
    scheduler.produce(10)
    await scheduler.tick()
    assert not scheduler.sleeping()
    with psycopg.connect(scheduler.database_url, autocommit=True) as listener:
        listener.execute("LISTEN relay_outbox")
        scheduler.produce()
        assert list(listener.notifies(timeout=0.3, stop_after=1)) == []
        query(scheduler.database_url, "UPDATE outbox_events SET published_at = now()")

        async def calm() -> bool:
            await scheduler.tick()
            return scheduler.sleeping()

        await eventually("it sleeps again", calm)
        scheduler.produce()
        assert len(list(listener.notifies(timeout=10, stop_after=1))) == 1


# --- outages ---


@given(limits=PollLimits(timeout=0.3))
async def test_a_hint_whose_poll_hangs_does_not_keep_the_ticks_from_polling(scheduler: Scheduler) -> None:
    """The next hint would come in an hour, and the tick waits for the poll that is under way."""
    await scheduler.tick()
    await eventually("it listens and has looked", lambda: scheduler.polls >= 2)
    with psycopg.connect(scheduler.database_url) as blocking:
        blocking.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
        query(scheduler.database_url, "NOTIFY relay_outbox")
        await eventually("it gave up", lambda: any(isinstance(fact, OutageSeen) for fact in scheduler.facts))
    scheduler.produce()
    await scheduler.tick()
    assert len(scheduler.sent()) == 2


async def test_who_takes_the_lead_replaces_what_another_left_outstanding(scheduler: Scheduler) -> None:
    """The job may sit in a back-off, from an outage that only the old leader saw."""
    scheduler.produce()
    await scheduler.tick()
    assert len(scheduler.sent()) == 2
    taken = scheduler.table["publish:sea"].on_lead
    assert taken is not None
    taken()
    await scheduler.tick()
    assert len(scheduler.sent()) == 4


async def test_after_an_outage_of_the_database_the_outstanding_jobs_are_replaced(
    tmp_path: Path, own_postgres: PostgresServer, valkey: ValkeyServer
) -> None:
    """They may sit in a back-off."""
    from relay.adapters.postgres.migrations import upgrade

    url = own_postgres.create_database("sea")
    await asyncio.to_thread(upgrade, url)
    async with scheduling(tmp_path, url, valkey.url) as scheduler:
        scheduler.produce()
        await scheduler.tick()
        before = {message.args[1]: message.args[2] for message in scheduler.messages()}
        for shard, token in before.items():
            await scheduler.application.gates.back_off(f"publish:sea:{shard}", token)
        await asyncio.to_thread(own_postgres.stop, "immediate")
        with pytest.raises(DatabaseUnreachable):
            await scheduler.tick()
        await asyncio.to_thread(own_postgres.start)

        async def replaced() -> bool:
            with suppress(DatabaseUnreachable):
                await scheduler.tick()
            return len(scheduler.sent()) > 2

        await eventually("the jobs are sent again", replaced)
        assert sorted(scheduler.sent()) == [("sea", 0), ("sea", 0), ("sea", 1), ("sea", 1)]
        await scheduler.tick()
        assert len(scheduler.sent()) == 4
        latest = [message.args[1:] for message in scheduler.messages() if message.args[2] not in before.values()]
        for shard, token in latest:
            async with scheduler.application.gates.hold(f"publish:sea:{shard}", token) as ours:
                assert ours


async def test_no_duty_waits_long_for_a_job_that_was_lost(scheduler: Scheduler, valkey: ValkeyServer) -> None:
    """Its worker died, or Redis lost it: in every case its gate opens by itself."""
    scheduler.produce()
    for name in scheduler.table:
        await scheduler.tick(name)
    client = redis.Redis.from_url(valkey.url)
    gates = list(client.scan_iter(f"{scheduler.application.settings.redis_namespace}:gate:*"))
    assert len(gates) > 5
    assert all(0 < client.pttl(gate) <= 6_000 for gate in gates)


async def test_what_a_leader_has_not_sent_yet_is_not_lost(scheduler: Scheduler) -> None:
    """The first rare ticks of many contexts come one after the other, so nothing else may send them before."""
    await scheduler.tick("resend:sea")
    assert tokens(scheduler) == {}
    await scheduler.tick("prune:sea")
    assert set(tokens(scheduler)) == {"prune"}


def seldom_ticks(scheduler: Scheduler) -> set[str]:
    jobless = {"publish:sea", "alerts:sea", "conditions:sea", "history:sea", "mend:sea"}
    seldom = {name for name, row in scheduler.table.items() if row.every >= timedelta(seconds=3)} - jobless
    assert {name.partition(":")[0] for name in seldom} == {"reconcile_stream", "prune", "look_after"}
    return seldom


@given(gate_times=GateTimes(gate=timedelta(milliseconds=300)))
async def test_whatever_ticks_seldom_is_sent_again_when_its_job_was_lost(
    scheduler: Scheduler, valkey: ValkeyServer
) -> None:
    """Lost is a job that has left its queue and whose gate is gone, and with it the word that the duty is done."""
    seldom = seldom_ticks(scheduler)
    for name in seldom:
        await scheduler.tick(name)
    first = tokens(scheduler)
    assert set(first) == {name.partition(":")[0] for name in seldom}
    client = redis.Redis.from_url(valkey.url)

    async def sent_again() -> bool:
        await scheduler.tick("resend:sea")
        now = tokens(scheduler)
        return all(actor in now and now[actor] != sent for actor, sent in first.items())

    client.delete(f"{scheduler.application.settings.redis_namespace}:relay-upkeep")  # a worker took them and died
    await eventually("those who were lost are sent again", sent_again)


@given(gate_times=GateTimes(gate=timedelta(minutes=10)))
async def test_what_is_done_is_sent_again_at_its_next_tick_and_not_before(scheduler: Scheduler) -> None:
    seldom = seldom_ticks(scheduler)
    for name in seldom:
        await scheduler.tick(name)
    first = tokens(scheduler)
    for name in seldom:
        await scheduler.application.gates.close(name, first[name.partition(":")[0]][-1])
    await scheduler.tick("resend:sea")
    assert tokens(scheduler) == first
    for name in seldom:
        await scheduler.tick(name)
    assert {actor: len(sent) for actor, sent in tokens(scheduler).items()} == dict.fromkeys(first, 2)


def tokens(scheduler: Scheduler) -> dict[str, list[str]]:
    """Of each actor the tokens that it was sent with, in order."""
    found: dict[str, list[str]] = {}
    for message in scheduler.messages("relay-upkeep"):
        found.setdefault(message.actor_name, []).append(message.args[-1])
    return found


async def test_without_redis_a_tick_says_so_and_goes_on(tmp_path: Path, database_url: str) -> None:
    async with scheduling(tmp_path, database_url, "redis://127.0.0.1:9/0") as scheduler:
        scheduler.produce()
        for name in scheduler.table:
            await scheduler.tick(name)
        servers = {fact.server for fact in scheduler.facts if isinstance(fact, OutageSeen)}
        assert servers == {"redis"}


# --- the other duties ---


async def test_every_duty_of_a_subscription_has_one_job_outstanding(scheduler: Scheduler) -> None:
    scheduler.lose_a_task()
    for _ in range(3):
        for name in scheduler.table:
            await scheduler.tick(name)
    assert scheduler.sent("relay-pull") == [("sea", "from_up")]
    upkeep = {message.actor_name: message.args[:-1] for message in scheduler.messages("relay-upkeep")}
    window = upkeep["reconcile_stream"][-1]
    assert upkeep == {
        "look_after": ("sea",),
        "prune": ("sea",),
        "sweep_tasks": ("sea",),
        "reconcile_stream": ("sea", window),
    }
    assert len(scheduler.messages("relay-upkeep")) == 4
    known = {message.actor_name: message.kwargs for message in scheduler.messages("relay-upkeep")}
    assert known["look_after"] == {"unfinished": []}, "workers need not ask an idle database"


async def test_messages_are_said_to_be_in_progress_well_within_the_ack_wait(scheduler: Scheduler) -> None:
    every = {name: job.every.total_seconds() for name, job in scheduler.table.items()}
    assert every["look_after:sea"] == 3  # the ack wait is 100 s
    assert every["publish:sea"] == 3600
    [context] = scheduler.application.settings.contexts.values()
    [subscription] = context.subscriptions.values()
    hasty = subscription.model_copy(update={"ack_wait": timedelta(seconds=4)})
    context = context.model_copy(update={"subscriptions": {"from_up": subscription, "hasty": hasty}})
    assert context.look_after_every == context.look_after_quiet == timedelta(seconds=1)


async def test_a_context_without_unfinished_messages_is_looked_after_less_often(scheduler: Scheduler) -> None:
    """So an idle context costs little. What a dead worker had is still recovered within ten seconds."""
    pace = scheduler.table["look_after:sea"].pace
    assert pace is not None
    await scheduler.tick("look_after:sea")
    assert pace.every == timedelta(seconds=5) < timedelta(seconds=10) - RecoveryLimits().patience
    scheduler.receive()
    await scheduler.tick("look_after:sea")
    assert pace.every == timedelta(seconds=3)
    query(scheduler.database_url, "UPDATE inbox_messages SET processed_at = now()")
    await scheduler.tick("look_after:sea")
    assert pace.every == timedelta(seconds=5)


async def test_nothing_is_swept_while_there_is_nothing_to_find(scheduler: Scheduler) -> None:
    async def swept() -> list[str]:
        for name in scheduler.table:
            if name.startswith("sweep"):
                await scheduler.tick(name)
        return sorted(message.actor_name for message in scheduler.messages("relay-upkeep"))

    assert await swept() == []
    scheduler.schedule()
    assert await swept() == []
    scheduler.lose_a_task()
    assert await swept() == ["sweep_tasks"]


async def test_an_operator_has_everything_looked_after(scheduler: Scheduler) -> None:
    gates, duty = scheduler.application.gates, "look_after:sea"
    routines = {"rescue_exhausted:from_up": timedelta(hours=1)}
    now, claimed = await gates.claim(duty, routines)
    await gates.rest(duty, dict.fromkeys(claimed, now + 3_600_000))
    assert (await gates.claim(duty, routines))[1] == []
    on_request = scheduler.table[duty].on_request
    assert on_request is not None
    await on_request()
    assert (await gates.claim(duty, routines))[1] == [*routines]


# --- tasks ---


async def test_a_task_is_delivered_on_the_hint_of_its_commit(scheduler: Scheduler) -> None:
    """No tick but the first runs here."""
    await scheduler.tick()
    await scheduler.tick("deliver_tasks:sea")
    await eventually("hints are welcome", scheduler.sleeping)
    assert scheduler.sent("relay-upkeep") == []
    scheduler.schedule()
    await eventually("the job is sent", lambda: scheduler.sent("relay-upkeep") == [("sea",)])


@given(limits=PollLimits(quiet_after=3600.0))
async def test_when_nothing_has_been_due_and_hints_are_sent_polls_are_seldom_until_something_is(
    scheduler: Scheduler,
) -> None:
    name = "deliver_tasks:sea"
    pace = scheduler.table[name].pace
    assert pace is not None
    await scheduler.tick(name)
    assert pace.every == timedelta(seconds=0.25)  # nobody sends hints yet
    await scheduler.tick()
    await eventually("hints are welcome", scheduler.sleeping)
    await eventually("it is known", lambda: scheduler.application.context("sea").wakeup.hinted)
    await scheduler.tick(name)
    assert pace.every == timedelta(seconds=2)
    changed: list[timedelta] = []
    pace.changed = lambda: changed.append(pace.every)
    scheduler.schedule()
    await eventually("the hint came", lambda: changed == [timedelta(seconds=0.25)])
    query(scheduler.database_url, "DELETE FROM task_outbox")
    await scheduler.tick(name)
    assert pace.every == timedelta(seconds=0.25)  # for a while


@given(limits=PollLimits(quiet_after=0.0))
async def test_after_a_while_without_work_polls_are_seldom_again(scheduler: Scheduler) -> None:
    name = "deliver_tasks:sea"
    pace = scheduler.table[name].pace
    assert pace is not None
    await scheduler.tick(name)
    await scheduler.tick()
    await eventually("it is known", lambda: scheduler.application.context("sea").wakeup.hinted)
    scheduler.schedule()
    await scheduler.tick(name)
    assert pace.every == timedelta(seconds=2)


@given(limits=PollLimits(looks=1_000))
async def test_a_hint_that_finds_a_job_outstanding_looks_again(scheduler: Scheduler) -> None:
    """The job may be at its end, and have looked too early for the task."""
    await scheduler.tick()
    await scheduler.tick("deliver_tasks:sea")
    await eventually("hints are welcome", scheduler.sleeping)
    gates, duty = scheduler.application.gates, "deliver_tasks:sea"
    token = await gates.open(duty)
    polls = scheduler.task_polls
    scheduler.schedule()
    await eventually("it was in vain", lambda: scheduler.task_polls > polls + 1)
    await gates.close(duty, str(token))
    await eventually("the job is sent", lambda: scheduler.sent("relay-upkeep") == [("sea",)])
