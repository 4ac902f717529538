"""Batches: what is asked at one moment is answered together, and nobody suffers from the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from relay.concurrency import Batcher
from relay.domain.errors import DatabaseUnreachable

pytestmark = pytest.mark.anyio


@dataclass
class Doubling:
    """Answers with the double, as soon as ``open`` is set."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    groups: list[list[int]] = field(default_factory=list)
    error: BaseException | None = None

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.groups.append([*items])
        await self.open.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return [2 * item for item in items]

    async def begun(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.groups) < count:  # noqa: ASYNC110 - what is called tells nobody
                await asyncio.sleep(0)


async def asked(batcher: Batcher[int, int], *items: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(batcher.ask(item)) for item in items]
    await asyncio.sleep(0)
    return tasks


async def test_what_is_asked_while_another_is_under_way_is_answered_together() -> None:
    double = Doubling()
    batcher = Batcher(double)
    tasks = await asked(batcher, 1)
    await double.begun(1)
    tasks += await asked(batcher, *range(2, 51))
    double.open.set()
    assert await asyncio.gather(*tasks) == [2 * n for n in range(1, 51)]
    assert double.groups == [[1], list(range(2, 51))]


async def test_one_alone_waits_for_nobody() -> None:
    double = Doubling()
    double.open.set()
    batcher = Batcher(double)
    for n in range(3):
        assert await asyncio.wait_for(batcher.ask(n), 60) == 2 * n
    assert double.groups == [[0], [1], [2]]


async def test_a_statement_takes_a_hundred_at_most() -> None:
    double = Doubling()
    double.open.set()
    tasks = await asked(Batcher(double), *range(250))
    assert await asyncio.gather(*tasks) == [2 * n for n in range(250)]
    assert [len(group) for group in double.groups] == [100, 100, 50]


async def test_a_failure_is_that_of_the_group_and_of_no_other() -> None:
    double = Doubling(error=DatabaseUnreachable("away"))
    batcher = Batcher(double)
    failing = await asked(batcher, 1, 2, 3)
    await double.begun(1)
    later = await asked(batcher, 4)
    double.open.set()
    results = await asyncio.gather(*failing, return_exceptions=True)
    assert [type(result) for result in results] == [DatabaseUnreachable] * 3
    assert await later[0] == 8
    assert await batcher.ask(5) == 10


@pytest.mark.parametrize("waiting", [True, False])
async def test_who_gives_up_takes_nobody_with_him(waiting: bool) -> None:
    """Neither with the statement under way, which he may have begun, nor in the queue."""
    double = Doubling()
    batcher = Batcher(double)
    if waiting:
        await asked(batcher, 0)
    first, second = await asked(batcher, 1, 2)
    await double.begun(1)
    first.cancel()
    double.open.set()
    assert await asyncio.wait_for(second, 60) == 4
    with pytest.raises(asyncio.CancelledError):
        await first
    assert double.groups == ([[0], [2]] if waiting else [[1, 2]])
    assert await asyncio.wait_for(batcher.ask(3), 60) == 6


async def test_nobody_waits_for_ever_when_everything_ends() -> None:
    double = Doubling(error=asyncio.CancelledError())
    batcher = Batcher(double)
    tasks = await asked(batcher, 1, 2)
    double.open.set()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 2
    assert await asyncio.wait_for(batcher.ask(3), 60) == 6


@pytest.mark.parametrize(("each", "pauses"), [(1, [0.001, 0.001, 0.001]), (3, [0.001, 0.002, 0.002])])
async def test_after_a_batch_of_several_the_first_of_the_next_waits_for_longer(
    each: int, pauses: list[float]
) -> None:
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    double = Doubling()
    double.open.set()
    batcher = Batcher(double, asyncio.get_running_loop(), pause=0.001, busy=0.002, wait=wait)
    for first in (0, 10, 20):
        for item in range(first, first + each):
            batcher.tell(item)
        await double.begun(len(waits) + 1)
        await batcher.drain()
    assert waits == pauses
    assert [len(group) for group in double.groups] == [each] * 3
