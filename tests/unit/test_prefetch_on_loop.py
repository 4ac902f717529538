"""Claims that the event loop makes ahead of their turn: with which others, for how long, each handed out once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from relay.domain.errors import DatabaseUnreachable
from relay.execution.prefetch import PrefetchLimits, PrefetchOnLoop
from tests.clock import Clock

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Rows:
    """Rows that wait for a slot of the loop. A statement takes until ``gate`` is open."""

    def __init__(self, count: int, *, locked: Sequence[int] = ()) -> None:
        self.waiting, self.locked = list(range(count)), set(locked)
        self.asked: list[tuple[list[int], list[int]]] = []
        self.alone: list[int] = []
        self.claimed: set[int] = set()
        self.given_back: list[int] = []
        self.gate, self.begun, self.gave_back = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.outage = False

    async def claim_many(self, ids: Sequence[int], others: Sequence[int]) -> Mapping[int, str]:
        self.asked.append((list(ids), list(others)))
        self.begun.set()
        await self.gate.wait()
        if self.outage:
            raise DatabaseUnreachable("gone")
        return {id: self.take(id) for id in (*ids, *others) if id not in self.claimed | self.locked}

    async def claim_alone(self, id: int) -> str | None:
        self.alone.append(id)
        return None if id in self.claimed else self.take(id)

    def take(self, id: int) -> str:
        self.claimed.add(id)
        return f"claim of {id}"

    async def give_back(self, claims: Sequence[str]) -> None:
        if self.outage:
            raise DatabaseUnreachable("gone")
        ids = [int(claim.rpartition(" ")[2]) for claim in claims]
        self.given_back += ids
        self.claimed -= set(ids)
        self.gave_back.set()


class Loop:
    """A loop with two slots, which begins rows in their order."""

    def __init__(self, rows: Rows, *, stale: float = 2.0) -> None:
        self.rows, self.clock = rows, Clock()
        self.ahead = PrefetchOnLoop(
            rows.claim_many,
            rows.claim_alone,
            rows.give_back,
            lambda limit: rows.waiting[:limit],
            limits=PrefetchLimits(stale=stale),
            clock=self.clock,
        )

    async def begin(self, slots: int = 2) -> list[str | None]:
        self.clock.now += 0.001
        ids, self.rows.waiting = self.rows.waiting[:slots], self.rows.waiting[slots:]
        return await asyncio.gather(*(self.ahead.claim(id) for id in ids))


async def test_rows_that_begin_together_and_those_behind_them_share_a_statement() -> None:
    rows = Rows(200)
    loop = Loop(rows)
    found = [claim for _ in range(100) for claim in await loop.begin()]
    assert found == [f"claim of {n}" for n in range(200)]
    assert rows.asked[:3] == [([0, 1], []), ([2, 3], [4]), ([5], [6, 7, 8])]
    assert (len(rows.asked) < 20, rows.alone) == (True, [])


async def test_a_row_whose_turn_comes_while_it_is_claimed_gets_that_claim() -> None:
    rows = Rows(20)
    loop = Loop(rows)
    await loop.begin()
    rows.gate.clear()
    rows.begun.clear()
    first = asyncio.create_task(loop.begin())
    await rows.begun.wait()
    # 4 is claimed by the statement under way, and its slot is free now.
    second = asyncio.create_task(loop.begin())
    await asyncio.sleep(0)
    rows.gate.set()
    assert await first + await second == [f"claim of {n}" for n in (2, 3, 4, 5)]
    assert rows.asked[1:] == [([2, 3], [4]), ([5], [6, 7, 8])]
    assert rows.alone == []


async def test_of_two_that_ask_for_a_row_one_gets_it() -> None:
    rows = Rows(0)
    loop = Loop(rows)
    found = await asyncio.gather(loop.ahead.claim(7), loop.ahead.claim(7))
    assert found == ["claim of 7", None]


async def test_a_locked_row_is_claimed_alone() -> None:
    rows = Rows(40, locked=[3, 20])
    loop = Loop(rows)
    found = [claim for _ in range(20) for claim in await loop.begin()]
    assert found == [f"claim of {n}" for n in range(40)]
    assert rows.alone == [3, 20]


async def test_a_claim_that_has_waited_long_is_given_back_and_made_anew() -> None:
    rows = Rows(10)
    loop = Loop(rows)
    await loop.begin()
    await loop.begin()
    assert rows.claimed == {0, 1, 2, 3, 4}
    loop.clock.now += 2.5
    assert await loop.begin(1) == ["claim of 4"]
    assert (rows.given_back, rows.alone) == ([4], [4])


async def test_nobody_has_to_ask_for_it_to_be_given_back() -> None:
    rows = Rows(10)
    loop = Loop(rows, stale=0.01)
    await loop.begin()
    await loop.begin()
    loop.clock.now += 1
    await asyncio.wait_for(rows.gave_back.wait(), 60)
    assert (rows.given_back, rows.claimed) == ([4], {0, 1, 2, 3})


async def test_the_end_gives_everything_back_and_claims_nothing_more() -> None:
    rows = Rows(20)
    loop = Loop(rows)
    await loop.begin()
    rows.gate.clear()
    rows.begun.clear()
    under_way = asyncio.create_task(loop.begin())
    await rows.begun.wait()
    await loop.ahead.close()
    rows.gate.set()
    assert await under_way == ["claim of 2", "claim of 3"]
    assert (rows.given_back, rows.claimed) == ([4], {0, 1, 2, 3})
    await loop.begin()
    assert rows.asked[-1] == ([4, 5], [])


async def test_an_outage_is_that_of_those_who_asked() -> None:
    rows = Rows(20)
    loop = Loop(rows)
    await loop.begin()
    rows.outage = True
    with pytest.raises(DatabaseUnreachable):
        await loop.begin()
    rows.outage = False
    assert await loop.begin() == ["claim of 4", "claim of 5"]
    rows.outage = True
    await loop.ahead.close()
    assert rows.given_back == []
