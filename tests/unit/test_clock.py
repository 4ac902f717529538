"""When the scheduler calls the ticks of many contexts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from scheduler.timer import IntervalTimer

pytestmark = pytest.mark.anyio

RARE = timedelta(seconds=30)


class Trace(list[object]):
    """What happened, in order: names of ticks, and pauses in seconds."""

    def tick(self, name: str) -> None:
        self.append(name)

    async def pause(self, seconds: float) -> None:
        self.append(seconds)


@pytest.fixture
def trace() -> Trace:
    return Trace()


def ticking(trace: Trace, every: timedelta, contexts: int) -> IntervalTimer:
    timer = IntervalTimer(AsyncIOScheduler(), sleep=trace.pause)
    for number in range(contexts):
        timer.add(every, lambda name=f"context {number}": trace.tick(name))
    return timer


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


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Callable[[], None]]]:
    """What the event loop is told to call, and in how many seconds. Its clock stands still."""
    told = list[tuple[float, Callable[[], None]]]()

    def call_at(when: float, call: Callable[..., None], *args: object) -> None:
        told.append((when, lambda: call(*args)))

    class Loop:
        time = staticmethod(lambda: 0.0)

    Loop.call_at = staticmethod(call_at)  # type: ignore[attr-defined]
    monkeypatch.setattr("scheduler.timer.asyncio.get_running_loop", Loop)
    return told


async def test_first_ticks_come_at_once_but_rare_ones_of_many_contexts_one_after_the_other(
    trace: Trace, due: list[tuple[float, Callable[[], None]]]
) -> None:
    """A fleet of fifty contexts that starts has more urgent work than fifty audits, each on its connection."""
    often, timer = timedelta(seconds=1), IntervalTimer(AsyncIOScheduler(), sleep=trace.pause)
    fires = [lambda name=f"context {number}": trace.tick(name) for number in range(3)]
    for fire in fires:
        for every in (often, RARE):
            timer.add(every, fire)
            timer.begin(every, fire)
    assert trace == ["context 0", "context 1", "context 2"], "those that come often"
    assert [when for when, _ in due] == pytest.approx([0.0, 0.2, 0.4])
    timer.remove(RARE, fires[1])
    for _, call in due:
        call()
    assert trace[3:] == ["context 0", "context 2"]


async def test_a_tick_that_ends_while_others_have_their_turn_is_called_no_more(trace: Trace) -> None:
    timer = IntervalTimer(AsyncIOScheduler(), sleep=trace.pause)

    def gone() -> None:
        trace.tick("gone")

    def first() -> None:
        trace.tick("first")
        timer.remove(RARE, gone)

    timer.add(RARE, first)
    timer.add(RARE, gone)
    await timer._fire(RARE)
    assert trace == ["first", 1.0]
