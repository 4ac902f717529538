"""The leading scheduler looks whether an outbox is full, and tells its producers when that changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay import Outbox
from relay.adapters.postgres.poll_connection import PollTimes
from relay.adapters.postgres.wakeup import DuePollTimes, Wakeup
from relay.devstack import ValkeyServer
from relay.domain.backpressure import OutboxLimits, Pressure, full
from relay.domain.facts import ProducersBraked, ProducersReleased
from scheduler.brake import BrakeTimes
from tests.integration.publishing import event, open_backlog_reader, query
from tests.integration.scheduling import Scheduler, scheduling

pytestmark = pytest.mark.anyio

BRAKE = "brake:sea"
KEY = "RELAY_CONTEXTS__SEA__BACKPRESSURE__"
LIMITS = OutboxLimits(above=10, age=timedelta(minutes=10), action="refuse", delay=timedelta(0))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gives up a question after 100 ms."""
    times = DuePollTimes(slow=60.0, polls=PollTimes(answer=0.1))
    monkeypatch.setattr("relay.bootstrap.Wakeup", partial(Wakeup, times=times))


@pytest.fixture
async def scheduler(
    request: pytest.FixtureRequest, tmp_path: Path, database_url: str, valkey: ValkeyServer
) -> AsyncIterator[Scheduler]:
    """A scheduler that does not rest after a check, unless its test says so (`braking`)."""
    limits = {f"{KEY}ABOVE": "10", f"{KEY}AGE": "10m", f"{KEY}ACTION": "refuse"}
    times = BrakeTimes(**{"pause_factor": 0, **getattr(request, "param", {})})
    async with scheduling(tmp_path, database_url, valkey.url, brake_times=times, **limits) as scheduler:
        yield scheduler


def braking(**times: float) -> pytest.MarkDecorator:
    """The times of the brake of a test."""
    return pytest.mark.parametrize("scheduler", [times], indirect=True, ids=["given"])


def told(scheduler: Scheduler) -> list[Any]:
    return [type(fact) for fact in scheduler.facts]


def brake(scheduler: Scheduler) -> Any:
    [row] = query(scheduler.database_url, "SELECT brake, brake_until, brake_since FROM relay_wakeup")
    return row


def publish(scheduler: Scheduler, count: int) -> None:
    query(
        scheduler.database_url,
        "UPDATE outbox_events SET published_at = now() WHERE id IN"
        " (SELECT id FROM outbox_events WHERE published_at IS NULL ORDER BY seq LIMIT %s)",
        count,
    )


async def test_a_context_without_limits_is_not_looked_at(
    tmp_path: Path, database_url: str, valkey: ValkeyServer
) -> None:
    async with scheduling(tmp_path, database_url, valkey.url) as scheduler:
        assert BRAKE not in scheduler.table


async def test_it_begins_above_the_limit_and_ends_below_a_part_of_it(scheduler: Scheduler) -> None:
    scheduler.produce(10)
    await scheduler.tick(BRAKE)
    assert (brake(scheduler)["brake"], told(scheduler)) == (None, [])
    scheduler.produce(1)
    await scheduler.tick(BRAKE)
    assert brake(scheduler)["brake"] == "refuse"
    [fact] = scheduler.facts
    assert fact == ProducersBraked(
        context="sea",
        action="refuse",
        reason=full("sea", LIMITS, Pressure(11, 0)),
        waiting=11,
        age_seconds=pytest.approx(0, abs=300),
    )
    publish(scheduler, 2)  # nine are left, which is not below 80 %
    await scheduler.tick(BRAKE)
    assert brake(scheduler)["brake"] == "refuse"
    publish(scheduler, 1)
    await scheduler.tick(BRAKE)
    assert brake(scheduler)["brake"] is None
    await scheduler.tick(BRAKE)
    assert told(scheduler) == [ProducersBraked, ProducersReleased]


async def test_it_is_told_again_before_it_ends_by_itself(scheduler: Scheduler) -> None:
    scheduler.produce(11)
    await scheduler.tick(BRAKE)
    first = brake(scheduler)
    await scheduler.tick(BRAKE)
    assert brake(scheduler) == first  # no write for each look
    query(scheduler.database_url, "UPDATE relay_wakeup SET brake_until = clock_timestamp() + interval '14 s'")
    await scheduler.tick(BRAKE)
    again = brake(scheduler)
    assert again["brake_until"] > first["brake_until"]
    assert again["brake_since"] == first["brake_since"]
    assert told(scheduler) == [ProducersBraked]


async def test_who_takes_the_lead_goes_on_and_brings_other_settings(scheduler: Scheduler) -> None:
    """Nine events are no reason to begin, but one to go on."""
    scheduler.produce(9)
    query(
        scheduler.database_url,
        "UPDATE relay_wakeup SET brake = 'warn', brake_until = clock_timestamp() + interval '1 h'",
    )
    await scheduler.tick(BRAKE)
    assert brake(scheduler)["brake"] == "refuse"
    assert scheduler.facts == []


async def test_one_that_has_ended_by_itself_is_told_as_ended(scheduler: Scheduler) -> None:
    query(scheduler.database_url, "UPDATE relay_wakeup SET brake = 'warn', brake_until = clock_timestamp()")
    await scheduler.tick(BRAKE)
    assert told(scheduler) == [ProducersReleased]


async def test_an_old_event_brakes_if_a_publisher_could_take_it(scheduler: Scheduler) -> None:
    """What has failed, what waits behind it, what is dead and what is delayed is no sign of pressure."""
    url = scheduler.database_url
    with psycopg.connect(url) as connection:
        for name, key in (("failed", "a"), ("behind", "a"), ("dead", None), ("delayed", None)):
            Outbox("sea").add(connection, event(name, partition_key=key))
    old = "UPDATE outbox_events SET occurred_at = now() - interval '20 min'"
    query(url, old)
    query(url, "UPDATE outbox_events SET publish_attempts = 1, available_at = now() WHERE aggregate_id = 'failed'")
    query(url, "UPDATE outbox_events SET dead_at = now() WHERE aggregate_id = 'dead'")
    query(url, "UPDATE outbox_events SET available_at = now() + interval '1 h' WHERE aggregate_id = 'delayed'")
    await scheduler.tick(BRAKE)
    assert scheduler.facts == []
    scheduler.add("b")
    query(url, old)
    await scheduler.tick(BRAKE)
    [fact] = scheduler.facts
    assert isinstance(fact, ProducersBraked)
    assert fact.reason == full("sea", LIMITS, Pressure(1, 1200))


async def test_what_is_dead_or_delayed_does_not_count_and_what_has_failed_does(scheduler: Scheduler) -> None:
    url = scheduler.database_url
    scheduler.produce(20)
    query(url, "UPDATE outbox_events SET dead_at = now() WHERE seq %% 2 = 0")
    query(url, "UPDATE outbox_events SET available_at = now() + interval '1 h' WHERE seq %% 2 = 1")
    scheduler.produce(10)
    await scheduler.tick(BRAKE)
    assert scheduler.facts == []
    scheduler.produce(1)
    query(
        url,
        "UPDATE outbox_events SET publish_attempts = 1, available_at = now() + interval '30 s'"
        " WHERE dead_at IS NULL AND available_at IS NULL",
    )
    await scheduler.tick(BRAKE)
    assert told(scheduler) == [ProducersBraked]


@braking(pause_factor=1e6)
async def test_after_a_look_that_took_its_time_it_rests(scheduler: Scheduler) -> None:
    await scheduler.tick(BRAKE)
    scheduler.produce(11)
    await scheduler.tick(BRAKE)
    assert scheduler.facts == []
    take_over = scheduler.table[BRAKE].on_lead
    assert take_over is not None
    take_over()
    await scheduler.tick(BRAKE)
    assert told(scheduler) == [ProducersBraked]


async def look_in_vain(scheduler: Scheduler) -> None:
    """A look that has no answer in time."""
    with psycopg.connect(scheduler.database_url) as connection:
        connection.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
        await scheduler.tick(BRAKE)


async def test_a_look_without_an_answer_does_not_begin_it(impatient: None, scheduler: Scheduler) -> None:
    scheduler.produce(11)
    await look_in_vain(scheduler)
    assert (brake(scheduler)["brake_until"], scheduler.facts) == (None, [])
    await scheduler.tick(BRAKE)
    assert told(scheduler) == [ProducersBraked]


async def test_a_look_without_an_answer_keeps_what_holds_for_a_while(
    impatient: None, scheduler: Scheduler
) -> None:
    """An overload must not end it. But nobody can tell whether there still is one."""
    scheduler.produce(11)
    await scheduler.tick(BRAKE)
    nearly_over = "UPDATE relay_wakeup SET brake_until = clock_timestamp() + interval '20 s' RETURNING brake_until"
    [before] = query(scheduler.database_url, nearly_over)
    await look_in_vain(scheduler)
    assert brake(scheduler)["brake_until"] > before["brake_until"]


@braking(blind=0)
async def test_looks_without_an_answer_do_not_keep_it_for_ever(impatient: None, scheduler: Scheduler) -> None:
    scheduler.produce(11)
    await scheduler.tick(BRAKE)
    before = brake(scheduler)
    await look_in_vain(scheduler)
    assert brake(scheduler)["brake_until"] == before["brake_until"]


async def test_a_look_without_an_answer_does_not_revive_what_has_ended(
    impatient: None, scheduler: Scheduler
) -> None:
    query(scheduler.database_url, "UPDATE relay_wakeup SET brake = 'warn', brake_until = clock_timestamp()")
    before = brake(scheduler)
    await look_in_vain(scheduler)
    assert brake(scheduler) == before


async def test_one_that_has_ended_and_begins_again_is_told_again(scheduler: Scheduler) -> None:
    scheduler.produce(11)
    await scheduler.tick(BRAKE)
    query(scheduler.database_url, "UPDATE relay_wakeup SET brake_until = clock_timestamp()")
    await scheduler.tick(BRAKE)
    assert told(scheduler) == [ProducersBraked, ProducersBraked]


async def test_operators_see_it(scheduler: Scheduler) -> None:
    async with open_backlog_reader(scheduler.database_url) as reader:
        assert (await reader.backlogs()).brake.braking == 0
        scheduler.produce(11)
        await scheduler.tick(BRAKE)
        found = (await reader.backlogs()).brake
        assert (found.braking, found.action) == (1, "refuse")
        assert found.reason == full("sea", LIMITS, Pressure(11, 0))
        query(scheduler.database_url, "UPDATE relay_wakeup SET brake_until = clock_timestamp()")
        assert (await reader.brake()).braking == 0
