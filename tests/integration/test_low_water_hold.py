"""For how long claims begin where they do, and what is done where the way there is long."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from relay.adapters.postgres.low_water import NO_LANE, NONE, RENEW_INTERVAL_S, Epoch, LowWaterMarks, SearchLimits
from relay.adapters.postgres.migrations import upgrade
from relay.adapters.postgres.pool import query as sql
from relay.adapters.postgres.sql import statement
from relay.devstack import PostgresServer
from relay.domain.errors import DatabaseUnreachable
from tests.integration.low_water_support import EAGER, busy, marks_of, marks_used
from tests.integration.publishing import ALL, Relay, event, outbox_rows, query
from tests.integration.test_publish_path import check_ledger
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

#: How a database that was put back numbers again: with another sequence, or with the same one.
PUT_BACK = {
    "anew": "ALTER SEQUENCE outbox_events_seq_seq RESTART",
    "lower": "SELECT setval('outbox_events_seq_seq', 1, false)",
}


async def test_another_server_is_believed_nothing(relay: Relay, eager: None) -> None:
    """One that has taken over may know less, and give positions again."""
    await relay.create_stream()
    command = relay.command()
    await busy(relay, command)
    assert max(marks_of(command).values()) > 0
    marks = command._outbox._marks
    marks._next_look = math.inf
    later = marks._epoch._replace(since=marks._epoch.since + timedelta(seconds=1))
    async with relay.pool.connection() as conn:
        found = await marks.find(conn, ALL.lanes, later, marks._decided)
    assert set(found) == {NONE}


async def test_nor_is_one_that_has_crashed(own_postgres: PostgresServer) -> None:
    """Its positions may be given again: they need not have reached the disk. It has not been started anew."""
    url = own_postgres.create_database("crashing")
    await asyncio.to_thread(upgrade, url)
    started = "SELECT pg_postmaster_start_time() AS since"
    [before], [began] = epoch(url), query(url, started)
    assert [before] == epoch(url)
    with contextlib.closing(psycopg.connect(url)) as victim:
        os.kill(victim.info.backend_pid, signal.SIGKILL)

        def restarted() -> bool:
            with contextlib.suppress(psycopg.OperationalError):
                return epoch(url) != [before]
            return False

        await eventually("it is another epoch", restarted)
    assert query(url, started)[0]["since"] == began["since"]


def epoch(url: str) -> list[Any]:
    with psycopg.connect(url) as conn:
        return [row[1:] for row in conn.execute(statement("outbox/lock_lanes"), {"lanes": [1]}).fetchall()]


async def test_a_claim_that_does_not_end_in_its_time_is_followed_by_marks(relay: Relay) -> None:
    """Or none would ever end: the next one has just as long a way to go."""
    relay.search = SearchLimits(slow=0.3)
    await relay.create_stream()
    command = relay.command()
    await busy(relay, command)
    relay.add(event("v1"))
    with psycopg.connect(relay.url) as conn:
        conn.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(DatabaseUnreachable):
            await command.drain(ALL)
    await command.drain(ALL)
    assert max(marks_of(command).values()) > 0


SHORT_STEPS = replace(EAGER, first=3, fewest=3, most=3)


async def test_a_long_way_is_gone_in_steps_before_anything_is_claimed(relay: Relay, eager: None) -> None:
    """A claim that has far to go would not end in its time, and the next one neither."""
    await relay.create_stream()
    await busy(relay, relay.command())
    limits = replace(SHORT_STEPS, search=0.0)
    marks, steps = LowWaterMarks(limits), 0
    lanes = [*ALL.lanes, NO_LANE]
    while (found := await found_by(relay, marks, lanes)) is None:
        # Nobody may claim with marks that are known to be too low, not even in the same round trip.
        assert marks.foresee(lanes) is None
        steps += 1
    assert steps > 10
    assert min(found) > 300
    relay.search = limits
    command = relay.command()
    relay.add(*[event(f"v{n}") for n in range(50)])
    # The first claim finds out that it is slow.
    assert await command.drain(ALL) == 50
    relay.add(event("v1"))
    assert await command.drain(ALL) == 1
    check_ledger(relay, await relay.ids())


async def found_by(relay: Relay, marks: LowWaterMarks, lanes: Sequence[int]) -> list[int] | None:
    """What a claim finds that follows a slow one."""
    marks.note(1.0)
    async with relay.pool.connection() as conn:
        [[_, *epoch, highest]] = await sql(conn, "outbox/lock_lanes", lanes=[1])
        return await marks.find(conn, lanes, Epoch(*epoch), highest)


async def test_a_step_that_takes_too_long_is_followed_by_a_shorter_one(relay: Relay) -> None:
    relay.search = replace(EAGER, search=60.0, step=0.05)
    await relay.create_stream()
    command = relay.command()
    await command.drain(ALL)
    marks = command._outbox._marks
    with psycopg.connect(relay.url) as conn:
        conn.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
        drained = asyncio.create_task(command.drain(ALL))
        await eventually("the step is short", lambda: marks._step_seqs == EAGER.fewest)
    await drained
    relay.add(event("v1"))
    await relay.drained(command)


async def test_claims_try_by_themselves_where_no_step_ends_in_time(
    relay: Relay, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await relay.create_stream()
    relay.search = replace(EAGER, search=0.0)
    monkeypatch.setattr(LowWaterMarks, "_advance", nothing)
    command = relay.command()
    await busy(relay, command)
    assert set(marks_of(command).values()) == {NONE}
    check_ledger(relay, await relay.ids())


async def nothing(*_: Any) -> None:
    """A step that takes too long."""


async def test_unordered_events_have_a_low_water_mark_without_any_lane(
    relay: Relay, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await relay.create_stream()
    command = relay.command()
    await busy(relay, command)
    seen = marks_used(monkeypatch)
    with psycopg.connect(relay.url) as other:
        other.execute(statement("outbox/lock_lanes"), {"lanes": ALL.lanes})
        relay.insert(partition_key="")
        assert await command.drain(ALL) == 1
    assert [len(marks) for marks in seen] == [1]
    assert seen[0][0] > 300


async def test_claims_that_are_quick_again_go_on_without_looking(
    relay: Relay, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await relay.create_stream()
    command = relay.command()
    await busy(relay, command)
    marks = command._outbox._marks
    marks._limits, marks._until = replace(EAGER, slow=60.0), 0.0
    await busy(relay, command)
    found = marks_of(command)
    await busy(relay, command)
    assert marks_of(command) == found
    check_ledger(relay, await relay.ids())


async def test_a_position_that_was_given_by_hand_is_found_when_marks_are_renewed(
    relay: Relay, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await relay.create_stream()
    command = relay.command()
    await busy(relay, command)
    relay.insert(seq=-1, partition_key="low")
    await busy(relay, command)
    assert len(relay.unpublished()) == 1
    assert command._outbox._marks._renewal < time.monotonic() + RENEW_INTERVAL_S
    command._outbox._marks._renewal = 0.0
    await relay.drained(command)


async def test_claims_keep_their_marks_while_these_are_renewed(
    relay: Relay, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await relay.create_stream()
    command = relay.command()
    await busy(relay, command)
    await busy(relay, command)
    before = marks_of(command)
    marks = command._outbox._marks
    marks._limits, marks._renewal = SHORT_STEPS, 0.0
    for _ in range(3):
        await command.drain(ALL)
        assert all(mark >= before[lane] for lane, mark in marks_of(command).items())
        assert max(marks._found.values()) < 20
    marks._step_seqs = 1_000
    await command.drain(ALL)
    assert marks._found == marks._marks
    assert min(marks_of(command).values()) > 300


async def test_positions_may_begin_again(relay: Relay, eager: None) -> None:
    await relay.create_stream()
    command = relay.command()
    await busy(relay, command)
    query(relay.url, "TRUNCATE outbox_events RESTART IDENTITY")
    relay.add(*[event(f"v{n}") for n in range(20)])
    await relay.drained(command)


@pytest.mark.parametrize("way", PUT_BACK)
async def test_an_earlier_state_of_the_database_is_read_from_its_beginning(
    relay: Relay, eager: None, way: str
) -> None:
    """A backup was put back beside a worker that runs: nothing is left above the marks, and numbers come again."""
    await relay.create_stream()
    command = relay.command()
    await busy(relay, command)
    query(relay.url, "DELETE FROM outbox_events")
    query(relay.url, PUT_BACK[way])
    relay.add(*[event(f"v{n}") for n in range(20)])
    assert max(row["seq"] for row in outbox_rows(relay.url)) < min(marks_of(command).values())
    await relay.drained(command)
