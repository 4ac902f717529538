"""When the scheduler calls the ticks of many contexts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from scheduler.clock import Clock

pytestmark = pytest.mark.anyio

RARE = timedelta(seconds=30)


class Trace(list[object]):
    """What happened, in order: names of ticks, and pauses in seconds."""

    def tick(self, name: str) -> None:
        self.append(name)

    async def pause(self, seconds: float) -> None:
        self.append(seconds)


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Trace:
    trace = Trace()
    monkeypatch.setattr("scheduler.clock.asyncio.sleep", trace.pause)
    return trace


def ticking(trace: Trace, every: timedelta, contexts: int) -> Clock:
    clock = Clock(AsyncIOScheduler())
    for number in range(contexts):
        clock.add(every, lambda name=f"context {number}": trace.tick(name))
    return clock


async def test_rare_ticks_of_many_contexts_spread_over_half_of_their_interval(trace: Trace) -> None:
    await ticking(trace, RARE, 50)._fire(RARE)
    assert trace[0::2] == [f"context {number}" for number in range(50)]
    assert trace[1::2] == [0.3] * 49


async def test_rare_ticks_of_few_contexts_come_within_seconds(trace: Trace) -> None:
    await ticking(trace, timedelta(hours=1), 3)._fire(timedelta(hours=1))
    assert trace == ["context 0", 1.0, "context 1", 1.0, "context 2"]


async def test_frequent_ticks_of_all_contexts_come_at_once(trace: Trace) -> None:
    often = timedelta(seconds=1)
    await ticking(trace, often, 3)._fire(often)
    assert trace == ["context 0", "context 1", "context 2"]


async def test_a_tick_that_ends_while_others_have_their_turn_is_called_no_more(trace: Trace) -> None:
    clock = Clock(AsyncIOScheduler())

    def gone() -> None:
        trace.tick("gone")

    def first() -> None:
        trace.tick("first")
        clock.remove(RARE, gone)

    clock.add(RARE, first)
    clock.add(RARE, gone)
    await clock._fire(RARE)
    assert trace == ["first", 1.0]
