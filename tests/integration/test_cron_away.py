"""A scheduler that was away while clocks changed makes up for what it owes, or tells what it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from relay.cron.expression import Expression
from relay.domain.facts import Fact, ScheduledRunMissed
from relay.domain.schedule import WaitingRun
from scheduler.crons import CronTick
from tests.integration.cron_bench import Bench, benched
from tests.integration.publishing import query
from tests.unit.test_cron_expression import EXPRESSIONS, NIGHTS, clock, minute_by_minute

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)


@pytest.mark.parametrize("grace", [DAY, timedelta(hours=3)], ids=["a day", "three hours"])
async def test_what_is_owed_after_thirty_hours_is_run_once_or_told(database_url: str, grace: timedelta) -> None:
    """One run for the latest time within the grace; if there is none, what was missed is recorded and told."""
    async with benched(database_url) as bench:
        await bench.lease.take(timedelta(minutes=30))
        for zone, day in NIGHTS:
            await away(bench, zone, day, grace)


async def away(bench: Bench, zone: str, day: str, grace: timedelta) -> None:
    since, names = clock(zone, day)[0][0], {it: f"{zone} {day} {it}" for it in EXPRESSIONS}
    now, facts = since + timedelta(hours=30), list[Fact]()
    plain = replace(bench.registry._jobs["job"], misfire_grace=grace)
    jobs = [replace(plain, name=name, expression=Expression(it, zone)) for it, name in names.items()]
    for name in names.values():
        query(
            bench.url,
            "INSERT INTO scheduled_jobs (name, schedule, registered_at) VALUES (%s, '', %s)",
            name,
            since,
        )

    async def send(runs: Sequence[WaitingRun]) -> None:
        del runs

    tick = CronTick("sea", jobs, bench.lease, bench.schedule, send, facts.append, lambda: now)
    for _ in range(4):
        tick.forget()
        await tick.tick()
    for expression, name in names.items():
        owed = [it for it in minute_by_minute(expression, zone, day) if it <= now]
        in_time = [it for it in owed if it > now - grace]
        found = opened(bench, name, since)
        assert [it for it, state in found if state == "waiting"] == in_time[-1:], name
        missed = [it for it, state in found if state == "missed"]
        assert missed == (owed[:4] if not in_time else []), name
        assert [
            it.scheduled_for for it in facts if isinstance(it, ScheduledRunMissed) and it.job == name
        ] == missed


def opened(bench: Bench, name: str, since: datetime) -> list[tuple[datetime, str]]:
    sql = "SELECT scheduled_for, state FROM scheduled_runs WHERE job = %s AND scheduled_for > %s ORDER BY 1"
    return [(row["scheduled_for"], row["state"]) for row in query(bench.url, sql, name, since)]
