"""Claims that are made ahead of their turn: how many, for how long, and each handed out once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue

import pytest

from relay.domain.errors import DatabaseUnreachable
from relay.execution.prefetch import USUAL_LIMITS, Prefetch, PrefetchLimits
from tests.clock import Clock

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Rows:
    """Rows that wait in a process. Each may be claimed once, and again when it was given back."""

    def __init__(self, waiting: Sequence[int] = (), *, locked: Sequence[int] = ()) -> None:
        self.waiting = list(waiting)
        self.locked = set(locked)
        self.asked: list[tuple[int, list[int]]] = []
        self.claimed: set[int] = set()
        self.given_back: list[int] = []
        self.gave_back = threading.Event()
        self.outage = False
        self._lock = threading.Lock()

    def claim(self, id: int, others: Sequence[int]) -> Mapping[int, str]:
        self.asked.append((id, list(others)))
        if self.outage:
            raise DatabaseUnreachable("gone")
        with self._lock:
            free = {id, *others} - self.claimed - self.locked
            self.claimed |= free
        return {it: f"claim of {it}" for it in free}

    def give_back(self, claims: Sequence[str]) -> None:
        if self.outage:
            raise DatabaseUnreachable("gone")
        ids = [int(claim.rpartition(" ")[2]) for claim in claims]
        self.given_back += ids
        self.claimed -= set(ids)
        self.gave_back.set()

    def next(self, limit: int) -> list[int]:
        return self.waiting[:limit]

    def take(self, claims: Prefetch[int, str]) -> str | None:
        """Take the next one as a thread of the worker does."""
        return claims.claim(self.waiting.pop(0))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def over(
    rows: Rows, clock: Callable[[], float] = time.monotonic, limits: PrefetchLimits = USUAL_LIMITS
) -> Prefetch[int, str]:
    loop = asyncio.get_running_loop()
    return Prefetch(rows.claim, rows.give_back, rows.next, loop, limits=limits, clock=clock)


# --- how many ---


async def test_what_waits_alone_is_claimed_by_itself(clock: Clock) -> None:
    rows = Rows()
    claims = over(rows, clock)
    assert [claims.claim(n) for n in range(50)] == [None] * 50
    assert rows.asked == []


async def test_the_quicker_they_are_the_more_are_claimed_at_once_up_to_a_bound(clock: Clock) -> None:
    rows = Rows(range(200))
    claims = over(rows, clock)
    found = []
    while rows.waiting:
        clock.now += 0.001
        found.append(rows.take(claims))
    sizes = [1 + len(others) for _, others in rows.asked]
    assert sizes[:5] == [2, 4, 8, 16, 16]
    assert max(sizes) == 16
    # The first by itself, as nobody knew yet how quick they are.
    assert found == [None, *(f"claim of {n}" for n in range(1, 200))]


async def test_slow_ones_are_claimed_one_by_one(clock: Clock) -> None:
    rows = Rows(range(20))
    claims = over(rows, clock)
    while rows.waiting:
        clock.now += 0.3
        assert rows.take(claims) is None
    assert rows.asked == []


async def test_those_that_become_slow_are_fewer_from_then_on(clock: Clock) -> None:
    rows = Rows(range(300))
    claims = over(rows, clock)
    while len(rows.waiting) > 200:
        clock.now += 0.001
        rows.take(claims)
    rows.asked.clear()
    while rows.waiting:
        clock.now += 0.06
        rows.take(claims)
    assert {1 + len(others) for _, others in rows.asked[1:]} == {4}


# --- each once ---


async def test_who_is_locked_is_left_to_a_claim_of_its_own(clock: Clock) -> None:
    rows = Rows(range(40), locked=[3, 20])
    claims = over(rows, clock)
    found = {}
    while rows.waiting:
        clock.now += 0.001
        id = rows.waiting[0]
        found[id] = rows.take(claims)
    assert [id for id, claim in found.items() if claim is None] == [0, 3, 20]


async def test_many_threads_get_each_claim_once() -> None:
    rows, queue = Rows(), SimpleQueue[int]()
    rows.waiting = list(range(5_000))
    for n in rows.waiting:
        queue.put(n)
    taken: Counter[str] = Counter()
    alone: list[int] = []
    claims = over(rows)

    def work() -> None:
        while True:
            try:
                id = queue.get_nowait()
            except Empty:
                return
            rows.waiting.remove(id)
            claim = claims.claim(id)
            if claim is None:
                # As in the worker: by itself, which fails if anybody has it.
                claim = rows.claim(id, ())[id]
                alone.append(id)
            assert claim == f"claim of {id}"
            taken[claim] += 1

    await asyncio.gather(*(asyncio.to_thread(work) for _ in range(8)))
    assert set(taken.values()) == {1}
    assert len(taken) == 5_000
    assert len(alone) < 500


async def test_an_outage_is_that_of_the_one_who_asked(clock: Clock) -> None:
    rows = Rows(range(10))
    claims = over(rows, clock)
    clock.now += 0.001
    rows.take(claims)
    clock.now += 0.001
    rows.outage = True
    with pytest.raises(DatabaseUnreachable):
        rows.take(claims)
    rows.outage = False
    clock.now += 0.001
    assert rows.take(claims) == "claim of 2"


# --- what is not begun ---


async def test_a_claim_that_has_waited_long_is_given_back_and_made_anew(clock: Clock) -> None:
    rows = Rows(range(10))
    claims = over(rows, clock)
    for _ in range(2):
        clock.now += 0.001
        rows.take(claims)
    assert rows.claimed == {1, 2}
    clock.now += 2.5
    assert rows.take(claims) is None
    assert (rows.given_back, rows.claimed) == ([2], {1})


async def test_nobody_has_to_ask_for_it_to_be_given_back() -> None:
    rows = Rows(range(10))
    claims = over(rows, limits=PrefetchLimits(stale=0.05))
    rows.take(claims)
    rows.take(claims)
    assert rows.claimed == {1, 2}
    await asyncio.to_thread(rows.gave_back.wait, 10)
    assert (rows.given_back, rows.claimed) == ([2], {1})


async def test_the_end_gives_everything_back_and_claims_nothing_more(clock: Clock) -> None:
    rows = Rows(range(20))
    claims = over(rows, clock)
    for _ in range(4):
        clock.now += 0.001
        rows.take(claims)
    claims.close()
    assert rows.claimed == {1, 2, 3}
    asked = len(rows.asked)
    while rows.waiting:
        clock.now += 0.001
        assert rows.take(claims) is None
    assert len(rows.asked) == asked


async def test_what_cannot_be_given_back_is_left_to_its_lease(clock: Clock) -> None:
    rows = Rows(range(20))
    claims = over(rows, clock)
    for _ in range(4):
        clock.now += 0.001
        rows.take(claims)
    rows.outage = True
    claims.close()
    assert rows.given_back == []
