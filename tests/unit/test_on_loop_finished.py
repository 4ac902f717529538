"""What threads have finished, handed to the event loop together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from relay.domain.errors import DatabaseUnreachable
from relay.domain.policies import Ack
from relay.execution.runners import GATHER_S, Completions

pytestmark = pytest.mark.anyio


class Loop:
    """What is done with messages there; of those that are to be marked, the claim on odd ones is lost."""

    def __init__(self, *, outage: bool = False) -> None:
        self.batches: list[list[Any]] = []
        self.marked: list[list[Any]] = []
        self._outage = outage

    async def mark(self, claims: Sequence[Any]) -> Sequence[Any]:
        self.marked.append(list(claims))
        if self._outage:
            raise DatabaseUnreachable("gone")
        return [claim for claim in claims if claim % 2 == 0]

    async def finish(self, claims: Sequence[Any]) -> None:
        self.batches.append(list(claims))
        await asyncio.sleep(0.001)

    def finished(self, *, pause: float = GATHER_S) -> Completions[Any, Any, Any]:
        return Completions(self, asyncio.get_running_loop(), pause=pause)  # type: ignore[arg-type]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_everything_finished_is_handed_over_once_and_much_of_it_together() -> None:
    loop = Loop()
    finished = loop.finished(pause=0.0)

    def add(first: int) -> None:
        for n in range(first, first + 2_000):
            finished.done.tell((n, Ack(settled=True)))

    await asyncio.gather(*(asyncio.to_thread(add, first) for first in range(0, 16_000, 2_000)))

    await finished.drain()
    assert Counter(n for batch in loop.batches for n in batch) == Counter(range(16_000))
    assert len(loop.batches) < 16_000
    assert loop.marked == []


async def test_what_nobody_waits_for_waits_for_more() -> None:
    loop = Loop()
    finished = loop.finished(pause=0.5)
    for n in range(3):
        finished.done.tell((n, Ack(settled=True)))
        await asyncio.sleep(0.01)
    await finished.drain()
    assert loop.batches == [[0, 1, 2]]


async def test_what_no_transaction_has_marked_is_marked_in_one_statement_and_finished_if_it_is_ours() -> None:
    loop = Loop()
    finished = loop.finished()
    for n, marked in enumerate([True, False, False, False, True]):
        finished.done.tell((n, Ack(settled=marked)))
    await finished.drain()
    assert loop.marked == [[1, 2, 3]]
    assert loop.batches == [[0, 4, 2]]


async def test_an_outage_of_the_database_keeps_nothing_from_being_acknowledged_that_is_marked() -> None:
    loop = Loop(outage=True)
    finished = loop.finished()
    finished.done.tell((1, Ack(settled=True)))
    finished.done.tell((2, Ack(settled=False)))
    await finished.drain()
    assert loop.batches == [[1]]


async def test_a_row_that_cannot_be_marked_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()

    async def mark(claims: Sequence[Any]) -> Sequence[Any]:
        if 4 in claims:
            raise ValueError("not this one")
        return await found(claims)

    found = loop.mark
    loop.mark = mark  # type: ignore[method-assign]
    finished = loop.finished()
    for n in (2, 4, 6):
        finished.done.tell((n, Ack(settled=False)))
    await finished.drain()
    assert loop.batches == [[2, 6]]
    assert len(caplog.records) == 1


async def test_a_row_that_is_locked_keeps_no_other_waiting() -> None:
    """To mark it waits for whoever has locked it."""
    loop, unlocked = Loop(), asyncio.Event()
    mark = loop.mark

    async def wait(claims: Sequence[Any]) -> Sequence[Any]:
        if 4 in claims:
            await unlocked.wait()
        return await mark(claims)

    loop.mark = wait  # type: ignore[method-assign]
    finished = loop.finished(pause=0.0)
    finished.done.tell((4, Ack(settled=False)))
    await finished.done.drain()
    finished.done.tell((6, Ack(settled=False)))
    async with asyncio.timeout(20):
        while loop.batches != [[6]]:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
    unlocked.set()
    await finished.drain()
    assert loop.batches == [[6], [4]]
