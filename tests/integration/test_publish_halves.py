"""A shard with much to do is drained in two halves side by side: in order, and without a lane left out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay import Event
from relay.domain.ordering import Shard
from tests.integration.publishing import ALL, DEADLINE, Relay, event, outbox_rows, query
from tests.integration.test_publish_path import Crash, check_ledger, not_twice

pytestmark = pytest.mark.anyio


def spread(count: int, keys: int) -> list[Event]:
    return [event(f"v{number % keys}", payload={"n": number}) for number in range(count)]


async def test_one_half_is_claimed_while_the_other_is_published(relay: Relay) -> None:
    await relay.create_stream()
    relay.add(*spread(400, 100))
    claims: list[set[str]] = []
    both = asyncio.Barrier(2)

    async def meet(claim: Any) -> None:
        claims.append({row.partition_key for row in claim.rows})
        if 1 < len(claims) < 4:
            await asyncio.wait_for(both.wait(), DEADLINE)

    assert await relay.command(batch_size=100, claimed=meet).drain(ALL) == 400
    assert len(claims[1]) > 1 < len(claims[2])
    assert not claims[1] & claims[2]
    check_ledger(relay, await relay.ids())
    not_twice(relay)


async def test_busy_lanes_are_divided_evenly(relay: Relay) -> None:
    """Otherwise one half of the shard would have all the work."""
    sql = (
        "SELECT 'v' || min(n) AS v FROM generate_series(1, 999) n GROUP BY hashtext('vibe:v' || n) & 63 HAVING %s"
    )
    even = [
        row["v"]
        for row in query(relay.url, sql % "(hashtext('vibe:v' || min(n)) & 1) = 0 ORDER BY min(n) LIMIT 4")
    ]
    await relay.create_stream()
    relay.add(*[event(name, payload={"n": n}) for n in range(10) for name in even])
    claims: list[int] = []

    async def note(claim: Any) -> None:
        claims.append(len({row.partition_key for row in claim.rows}))

    await relay.command(batch_size=8, claimed=note).drain(Shard(0, 2))
    assert claims[:3] == [4, 2, 2]


async def test_an_event_of_a_quiet_lane_does_not_wait_for_the_busy_ones(relay: Relay) -> None:
    await relay.create_stream()
    relay.add(*spread(400, 1))
    claims = 0

    async def interrupt(_: Any) -> None:
        nonlocal claims
        claims += 1
        if claims == 5:
            relay.add(event("quiet"))

    await relay.command(batch_size=10, claimed=interrupt).drain(ALL)
    [quiet] = [row for row in outbox_rows(relay.url) if row["aggregate_id"] == "quiet"]
    assert quiet["published_seq"] < 200


async def test_when_one_half_fails_the_other_ends_its_batches_before_the_drain_does(relay: Relay) -> None:
    await relay.create_stream()
    relay.add(*spread(400, 100))
    inside = claims = 0
    both = asyncio.Barrier(2)

    async def fail_one(_: Any) -> None:
        nonlocal inside, claims
        inside, claims = inside + 1, claims + 1
        if 1 < claims < 4:
            await asyncio.wait_for(both.wait(), DEADLINE)
            if claims == 3 and inside == 2:
                inside -= 1
                raise Crash

    async def leave(_: Any) -> None:
        nonlocal inside
        inside -= 1

    with pytest.raises(Crash):
        await relay.command(batch_size=100, claimed=fail_one, settled=leave).drain(ALL)
    assert inside == 0
    await relay.drained()
    check_ledger(relay, await relay.ids())
