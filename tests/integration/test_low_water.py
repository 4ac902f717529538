"""Where claims begin to look while an old snapshot keeps what is published in the index: none is passed over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from relay.adapters.postgres.low_water import NONE, LowWaterMarks
from relay.domain.ordering import LANES
from tests.integration.low_water_support import EAGER, busy, marks_of
from tests.integration.plans import Connection, explain
from tests.integration.publishing import ALL, Relay, event, outbox_rows, query
from tests.integration.test_publish_path import check_ledger
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

DEAD = "UPDATE outbox_events SET dead_at = now(), publish_attempts = 3 WHERE id = %s"
DELAYED = "UPDATE outbox_events SET available_at = now() + interval '1 day' WHERE id = %s"
#: How an event comes back to be published, and how it stood before.
RETURNS = {
    "retried": (DEAD, "UPDATE outbox_events SET dead_at = NULL, publish_attempts = 0 WHERE id = %s"),
    "released": (DELAYED, "UPDATE outbox_events SET available_at = NULL WHERE id = %s"),
}


@contextmanager
def old_snapshot(url: str) -> Iterator[None]:
    with psycopg.connect(url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM outbox_events")
        yield


def pages(conn: Connection, marks: dict[int, int]) -> int:
    """How many pages a claim looks at."""
    terms = {"lanes": ALL.lanes, "limit": 300, "dead_head_blocks": False, "apart": []}
    held = [marks.get(lane, NONE) for lane in (*ALL.lanes, -1)]
    plan = explain(conn, "outbox/claim", after="outbox/claim_settings", marks=held, **terms)
    return int(plan.root["Shared Hit Blocks"] + plan.root["Shared Read Blocks"])


# --- what it is for ---


async def test_what_is_published_is_not_looked_at_again(relay: Relay, eager: None) -> None:
    await relay.create_stream()
    command = relay.command()
    with old_snapshot(relay.url), psycopg.connect(relay.url, autocommit=True) as conn:
        relay.add(*[event(f"v{n % 200}") for n in range(10_000)])
        await command.drain(ALL)
        await busy(relay, command)
        found = marks_of(command)
        assert len(found) == LANES + 1
        assert pages(conn, {}) > 20 * pages(conn, found)
    await busy(relay, command)
    check_ledger(relay, await relay.ids())


@pytest.mark.parametrize(("slow", "together"), [(60.0, 0.0), (-1.0, 3_600.0)])
async def test_quick_claims_and_a_few_slow_ones_need_no_marks(relay: Relay, slow: float, together: float) -> None:
    relay.search = replace(EAGER, slow=slow, together=together)
    await relay.create_stream()
    command = relay.command()
    await busy(relay, command)
    assert set(marks_of(command).values()) == {NONE}


async def test_that_somebody_is_always_writing_does_not_matter(relay: Relay, eager: None) -> None:
    """Only those count who wrote at the time."""
    await relay.create_stream()
    command = relay.command()
    await busy(relay, command)
    before = max(marks_of(command).values())
    with psycopg.connect(relay.url) as first, psycopg.connect(relay.url) as second:
        for writer, key in ((first, "slow1"), (second, "slow2")):
            relay.outbox.add(writer, event(key))
            relay.add(event("v1"))
            await command.drain(ALL)
            await command.drain(ALL)
        # The second has begun before the first is done.
        first.commit()
        await command.drain(ALL)
        assert max(marks_of(command).values()) > before
    await relay.drained(command)


# --- nothing is passed over ---


async def test_the_first_position_of_all_is_not_given_before_it_is(relay: Relay, eager: None) -> None:
    await relay.create_stream()
    command = relay.command()
    await command.drain(ALL)
    await command.drain(ALL)
    relay.add(event("v1"))
    await relay.drained(command)


async def test_an_event_that_is_committed_late_goes_and_so_do_its_followers(relay: Relay, eager: None) -> None:
    await relay.create_stream()
    command = relay.command()
    await busy(relay, command)
    with psycopg.connect(relay.url) as late:
        late.execute("SELECT 1")
        relay.outbox.add(late, event("late", payload={"n": 1}))
        await busy(relay, command)
    relay.add(event("late", payload={"n": 2}))
    await relay.drained(command)
    check_ledger(relay, await relay.ids())


async def test_a_position_that_is_given_and_not_yet_used_is_waited_for(relay: Relay, eager: None) -> None:
    """A trigger of the application may take its time between the position and the row. Nobody sees either."""
    await relay.create_stream()
    command = relay.command()
    await busy(relay, command)
    query(
        relay.url,
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pg_advisory_xact_lock(77); RETURN NEW; END $$",
    )
    query(
        relay.url,
        "CREATE TRIGGER wait BEFORE INSERT ON outbox_events FOR EACH ROW"
        " WHEN (NEW.aggregate_id = 'late') EXECUTE FUNCTION wait()",
    )
    with psycopg.connect(relay.url) as gate:
        gate.execute("SELECT pg_advisory_xact_lock(77)")
        late = asyncio.create_task(asyncio.to_thread(relay.insert, aggregate_id="late"))
        waiting = "SELECT count(*) AS waiting FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        await eventually("it waits", lambda: query(relay.url, waiting)[0]["waiting"] > 0)
        await busy(relay, command)
    await late
    await relay.drained(command)
    check_ledger(relay, await relay.ids())


@pytest.mark.parametrize("how", RETURNS)
async def test_an_event_that_comes_back_goes_before_its_followers(relay: Relay, eager: None, how: str) -> None:
    await relay.create_stream()
    command = relay.command(dead_head_blocks=True)
    before, back = RETURNS[how]
    [head, *_] = relay.add(*[event("v1", payload={"n": n}) for n in range(5)])
    query(relay.url, before, head)
    if before == DELAYED:
        # A delay holds nobody back: the followers come only now.
        await command.drain(ALL)
    await busy(relay, command)
    position = next(row["seq"] for row in outbox_rows(relay.url) if row["id"] == head)
    assert max(marks_of(command).values()) > position
    query(relay.url, back, head)
    assert await command.drain(ALL) == (1 if before == DELAYED else 5)
    stored = await relay.ids()
    if before == DEAD:
        check_ledger(relay, stored)
    assert str(head) in stored


@pytest.mark.parametrize("change", ["partition_key = 'else'", "seq = 0"])
async def test_an_event_that_is_moved_by_hand_goes(relay: Relay, eager: None, change: str) -> None:
    """To a lane that has been found empty up to there, say."""
    await relay.create_stream()
    command = relay.command()
    lane = "SELECT hashtext(%s) & 63 AS lane"
    assert query(relay.url, lane, "else") != query(relay.url, lane, "v1")
    [moved] = relay.add(event("v1", partition_key="v1"))
    with psycopg.connect(relay.url) as operator:
        operator.execute("SELECT FROM outbox_events WHERE id = %s FOR UPDATE", [moved])
        await busy(relay, command)
        operator.execute(f"UPDATE outbox_events SET {change} WHERE id = %s", [moved])
    await relay.drained(command)


async def test_one_that_comes_back_in_the_middle_of_a_claim_goes_before_its_followers(
    relay: Relay, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the claim has its marks already, and the followers have just become free."""
    await relay.create_stream()
    command = relay.command(dead_head_blocks=True)
    [head, *_] = relay.add(*[event("v1", payload={"n": n}) for n in range(5)])
    query(relay.url, DEAD, head)
    await busy(relay, command)
    find = LowWaterMarks.find

    async def find_and_retry(self: LowWaterMarks, *arguments: Any) -> list[int]:
        found = await find(self, *arguments)
        query(relay.url, RETURNS["retried"][1] + " AND dead_at IS NOT NULL", head)
        return found

    monkeypatch.setattr(LowWaterMarks, "find", find_and_retry)
    await relay.drained(command)
    check_ledger(relay, await relay.ids())


async def test_one_that_comes_back_while_marks_are_found_goes_before_its_followers(
    relay: Relay, eager: None
) -> None:
    await relay.create_stream()
    command = relay.command(dead_head_blocks=True)
    [head, *_] = relay.add(*[event("v1", payload={"n": n}) for n in range(5)])
    query(relay.url, DEAD, head)
    await busy(relay, command)
    with psycopg.connect(relay.url) as operator:
        operator.execute(RETURNS["retried"][1], [head])
        # It is counted, and nobody sees it yet.
        await busy(relay, command)
    await relay.drained(command)
    check_ledger(relay, await relay.ids())
