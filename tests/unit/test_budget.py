"""How the connections of a process are shared out: who gets one, who waits, which one makes room."""

from __future__ import annotations

import asyncio
import itertools
import threading
from random import Random

import pytest
from dramatiq.middleware import TimeLimitExceeded
from dramatiq.middleware.threading import raise_thread_exception

from relay.adapters.postgres.budget import Budget, Budgets, Owner
from relay.domain.errors import ConnectionsBusy, DatabaseUnreachable

pytestmark = pytest.mark.anyio


class Line:
    """What stands for a connection."""

    usable = True
    finished = False

    def finish(self) -> None:
        self.finished = True


async def test_what_was_given_back_last_is_taken_first_and_by_its_owner_only() -> None:
    budget = Budget(8)
    one, other = budget.owner(), budget.owner()
    first, second = Line(), Line()
    assert [await budget.take(one), await budget.take(one)] == [None, None]
    budget.give(one, first)
    budget.give(one, second)
    assert await budget.take(other) is None
    assert [await budget.take(one), await budget.take(one), await budget.take(one)] == [second, first, None]
    assert budget.open == 4


async def test_one_that_is_not_usable_is_closed_and_makes_room() -> None:
    budget = Budget(4)
    owner, broken = budget.owner(), Line()
    await budget.take(owner)
    budget.give(owner, broken)
    broken.usable = False
    assert await budget.take(owner) is None
    assert broken.finished
    assert budget.open == 1


async def test_what_was_unused_for_longest_makes_room_for_another() -> None:
    budget = Budget(4)
    owners = [budget.owner() for _ in range(5)]
    lines = [Line() for _ in range(4)]
    for owner in owners[:4]:
        assert await budget.take(owner) is None
    for owner, line in zip(owners, lines, strict=False):
        budget.give(owner, line)
    assert await budget.take(owners[4]) is None
    assert [line.finished for line in lines] == [True, False, False, False]
    assert budget.open == 4


async def test_of_those_used_lately_who_has_most_makes_room() -> None:
    budget, newcomer = Budget(4), Line()
    poor, rich, third = budget.owner(), budget.owner(), budget.owner()
    lines = [Line() for _ in range(4)]
    for owner in (poor, rich, rich, rich):
        assert await budget.take(owner) is None
    for owner, line in zip((poor, rich, rich, rich), lines, strict=True):
        budget.give(owner, line)
    assert await budget.take(third) is None
    assert [line.finished for line in lines] == [False, True, False, False]
    budget.give(third, newcomer)


async def test_who_has_one_in_use_waits_for_it_before_it_closes_what_others_use() -> None:
    budget = Budget(4, patience=10)
    ours, others = budget.owner(), budget.owner()
    theirs, back = [Line(), Line()], Line()
    for owner in (ours, ours, others, others):
        assert await budget.take(owner) is None
    for line in theirs:
        budget.give(others, line)
    waits = asyncio.create_task(budget.take(ours))
    in_thread = asyncio.create_task(asyncio.to_thread(budget.take_in_thread, ours))
    while len(budget._waiting) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    budget.give(ours, back)
    assert await waits is back
    budget.give(ours, back)
    assert await in_thread is back
    assert not any(line.finished for line in theirs)


async def test_who_has_waited_in_vain_for_its_own_closes_one_of_another() -> None:
    budget = Budget(4, patience=0.01)
    ours, others, line = budget.owner(), budget.owner(), Line()
    for owner in (ours, ours, ours, others):
        assert await budget.take(owner) is None
    budget.give(others, line)
    assert await budget.take(ours) is None
    assert line.finished
    budget.give(ours, line := Line())
    assert await budget.take(others) is None, "it has none of its own, so it does not wait"
    assert line.finished
    budget.give(others, line := Line())
    assert await asyncio.to_thread(budget.take_in_thread, ours) is None
    assert line.finished


@pytest.mark.parametrize("most", [4, 6, 9])
@pytest.mark.parametrize("lent", [False, True])
async def test_many_callers_of_several_owners_open_few_connections(most: int, lent: bool) -> None:
    """A new session costs more than most calls. So owners on a small budget do not close those of each other."""
    budget, random = Budget(most, patience=10), Random(most)
    opened = 0

    async def call(owner: Owner) -> None:
        nonlocal opened
        for _ in range(100):
            kept = await budget.take(owner)
            opened += kept is None
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
            budget.give(owner, kept or Line())
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)

    owners = [budget.owner(lent=lent), budget.owner(lent=True), budget.owner()]
    await asyncio.gather(*(call(owner) for owner in owners for _ in range(6)))
    assert opened <= 10 * most, "of 1,800 calls"
    assert budget.open <= most


async def test_who_finds_no_room_waits_for_it_in_turn() -> None:
    budget = Budget(4)
    busy, waits, also = budget.owner(), budget.owner(), budget.owner()
    for _ in range(4):
        assert await budget.take(busy) is None
    first = asyncio.create_task(budget.take(waits))
    await asyncio.sleep(0)
    second = asyncio.create_task(budget.take(also))
    await asyncio.sleep(0)
    assert not first.done()
    line = Line()
    budget.give(busy, line)
    assert await first is None, "room for a connection of its own"
    assert line.finished, "which was that of another"
    kept = Line()
    third = asyncio.create_task(budget.take(busy))
    await asyncio.sleep(0)
    budget.give(busy, None)
    assert await second is None
    budget.give(busy, kept)
    assert await third is kept, "of the same owner it goes from hand to hand"
    assert budget.open == 4


async def test_a_thread_waits_too() -> None:
    budget = Budget(4)
    owner, line, got = budget.owner(), Line(), list[object]()
    for _ in range(4):
        await budget.take(owner)
    thread = threading.Thread(target=lambda: got.append(budget.take_in_thread(owner)))
    thread.start()
    while not budget._waiting:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    budget.give(owner, line)
    await asyncio.to_thread(thread.join, 10)
    assert got == [line]


async def test_who_waits_in_vain_is_told_what_to_change_and_takes_nothing() -> None:
    budget = Budget(4, wait=0.01)
    owner = budget.owner()
    for _ in range(4):
        await budget.take(owner)
    with pytest.raises(ConnectionsBusy, match=r"all 4 connections .* max_connections") as caught:
        await budget.take(owner)
    assert caught.value.code == "CONNECTIONS_BUSY"
    assert isinstance(caught.value, DatabaseUnreachable), "it is retried like an outage, and spends no attempt"
    with pytest.raises(ConnectionsBusy):
        await asyncio.to_thread(budget.take_in_thread, owner)
    for _ in range(4):
        budget.give(owner, None)
    assert budget.open == 0


async def test_one_that_is_cancelled_while_it_waits_takes_nothing() -> None:
    budget = Budget(4)
    owner, line = budget.owner(), Line()
    for _ in range(4):
        await budget.take(owner)
    before, late = asyncio.create_task(budget.take(owner)), asyncio.create_task(budget.take(owner))
    await asyncio.sleep(0)
    before.cancel()
    await asyncio.gather(before, return_exceptions=True)
    budget.give(owner, line)  # for the second, which is cancelled before it hears of it
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    assert late.cancelled()
    assert [kept for _, kept in owner.idle] == [line]


async def test_a_thread_that_is_interrupted_while_it_waits_takes_nothing() -> None:
    """Dramatiq interrupts a thread at its time limit, which hears of it when it wakes up, connection in hand."""
    budget, ended = Budget(4), list[type[BaseException]]()
    owner, line = budget.owner(), Line()
    for _ in range(4):
        await budget.take(owner)

    def wait() -> None:
        try:
            budget.take_in_thread(owner)
        except TimeLimitExceeded as error:
            ended.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    while not budget._waiting:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert thread.ident is not None
    raise_thread_exception(thread.ident, TimeLimitExceeded)
    budget.give(owner, line)
    await asyncio.to_thread(thread.join, 10)
    assert ended == [TimeLimitExceeded]
    assert [kept for _, kept in owner.idle] == [line]


async def test_functions_leave_a_part_to_the_relay_itself() -> None:
    """Functions that run for long, one in each thread, must not keep it from renewing their claims."""
    budget = Budget(8, wait=0.01)
    functions, relay = budget.owner(lent=True), budget.owner()
    for _ in range(6):
        assert await budget.take(functions) is None
    with pytest.raises(ConnectionsBusy, match="all 6 connections"):
        await budget.take(functions)
    assert [await budget.take(relay), await budget.take(relay)] == [None, None]
    with pytest.raises(ConnectionsBusy):
        await budget.take(relay)


async def test_a_function_that_waits_for_its_part_holds_up_nobody() -> None:
    budget = Budget(8)
    functions, relay = budget.owner(lent=True), budget.owner()
    for _ in range(6):
        await budget.take(functions)
    waits = asyncio.create_task(budget.take(functions))
    await asyncio.sleep(0)
    assert await budget.take(relay) is None
    line = Line()
    budget.give(relay, line)
    assert not waits.done()
    assert await budget.take(relay) is line
    budget.give(functions, None)
    assert await waits is None


async def test_idle_ones_of_functions_make_room_for_other_functions() -> None:
    budget = Budget(8)
    functions, others, line = budget.owner(lent=True), budget.owner(lent=True), Line()
    for _ in range(6):
        await budget.take(functions)
    budget.give(functions, line)
    assert await budget.take(others) is None
    assert line.finished


async def _taken(budget: Budget, owner: Owner) -> int:
    """Take until there is none left; returns how many there were."""
    for number in itertools.count():
        try:
            await budget.take(owner)
        except ConnectionsBusy:
            return number
    raise AssertionError


async def test_a_database_whose_functions_and_statements_hang_leaves_a_part_to_the_others() -> None:
    """Functions that call a slow service, each with its connection, and statements that wait for a lock."""
    budget = Budget(16, wait=0.01)
    functions, statements = budget.owner("dbname=sea", lent=True), budget.owner("dbname=sea")
    also = budget.owner("dbname=sea user=handlers", lent=True)
    others, relay = budget.owner("dbname=vibes", lent=True), budget.owner("dbname=vibes")
    assert await _taken(budget, functions) == 8, "half"
    assert await _taken(budget, also) == 0, "another user, the same database"
    assert await _taken(budget, statements) == 4, "a quarter: they renew and settle the claims of these functions"
    assert await _taken(budget, others) == 4, "all functions together have three quarters"
    assert await _taken(budget, relay) == 0
    budget.give(others, None)
    assert await _taken(budget, relay) == 1


async def test_statements_of_a_database_that_hang_leave_a_part_to_the_others() -> None:
    budget = Budget(16, wait=0.01)
    statements, others = budget.owner("dbname=sea"), budget.owner("dbname=sea options=-csearch_path=vibes")
    assert await _taken(budget, statements) == 12
    assert await _taken(budget, others) == 4


async def test_an_unused_connection_makes_room_only_where_it_counts() -> None:
    """Unused connections of others do not help a database that has its part, and stay open."""
    budget, far, near = Budget(8), Line(), Line()
    sea, vibes = budget.owner("dbname=sea"), budget.owner("dbname=vibes")
    again = budget.owner("dbname=sea")
    for _ in range(6):
        await budget.take(sea)
    await budget.take(vibes)
    budget.give(vibes, far)
    waits = asyncio.create_task(budget.take(again))
    await asyncio.sleep(0)
    assert not far.finished
    budget.give(sea, near)
    assert await waits is None
    assert (far.finished, near.finished) == (False, True)


async def test_what_nobody_uses_is_closed_after_a_while() -> None:
    budget = Budget(8)
    owner, old, young = budget.owner(), Line(), Line()
    await budget.take(owner)
    await budget.take(owner)
    budget.give(owner, old)
    budget.give(owner, young)
    owner.idle[0] = (owner.idle[0][0] - 60, old)
    budget.close_idle(30)
    assert (old.finished, young.finished, budget.open) == (True, False, 1)


async def test_a_closed_owner_keeps_nothing() -> None:
    budget = Budget(8)
    owner, idle, used = budget.owner(), Line(), Line()
    await budget.take(owner)
    await budget.take(owner)
    budget.give(owner, idle)
    budget.close(owner)
    assert (idle.finished, budget.open) == (True, 1)
    budget.give(owner, used)
    assert (used.finished, budget.open) == (True, 0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("postgresql://a@db/sea", "postgresql://b@db/vibes?options=-csearch_path%3Dx", True),
        ("postgresql://a@db:5432/sea", "host=db port=5432 dbname=vibes", True),
        ("postgresql://a@db:5432/sea", "postgresql://a@db:5433/sea", False),
        ("postgresql://a@db/sea", "postgresql://a@other/sea", False),
        ("postgresql://malformed@:x:y", "postgresql://a@db/sea", False),
    ],
)
def test_all_databases_of_a_server_share_a_budget(one: str, other: str, same: bool) -> None:
    budgets = Budgets(8)
    assert (budgets.of(one) is budgets.of(other)) is same
