"""A loop that keeps something alive ends when it is told to, though its CancelledError gets lost on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relay.adapters.dramatiq.gates import Gates, GateTimes, Hold
from relay.adapters.dramatiq.wakeup import _Line
from relay.concurrency import end, is_cancelled
from relay.execution.lease import Watchdog
from scheduler.leader import Leader

pytestmark = pytest.mark.anyio

Renew = Callable[..., Awaitable[bool]]


class Unwell:
    """What is asked in each round. It loses a cancellation, as asyncio.wait_for does on Python 3.11."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.times = 0

    async def __call__(self, *_: Any) -> bool:
        self.times += 1
        self.asked.set()
        try:
            await asyncio.sleep(0.05 if self.times > 1 else 60)
        except asyncio.CancelledError:
            assert is_cancelled()
        return True


def on(function: Any, *last: Any, **parts: Any) -> Coroutine[Any, Any, None]:
    """Call a method of an object that has these parts only. ``last``: the last arguments; others are None."""
    arguments = [None] * (function.__code__.co_argcount - 1 - len(last))
    return cast("Coroutine[Any, Any, None]", function(SimpleNamespace(**parts), *arguments, *last))


async def a_question() -> str:
    return "q"


KEEPERS: dict[str, Callable[[Renew], Coroutine[Any, Any, None]]] = {
    "gate": lambda renew: on(Gates._keep, _holds=[Hold(True)], _still=renew, times=GateTimes(gate=timedelta())),
    "redis": lambda send: on(
        _Line._send,
        _questions=SimpleNamespace(get=a_question),
        _unanswered=[],
        _connection=SimpleNamespace(send_command=send),
    ),
    "leader": lambda ask: on(Leader.run, _round=ask, _lease=SimpleNamespace(pause=0)),
}


@pytest.mark.parametrize("name", KEEPERS)
async def test_it_ends(name: str) -> None:
    renew = Unwell()
    keeper = asyncio.create_task(KEEPERS[name](renew))
    await renew.asked.wait()
    keeper.cancel()
    await asyncio.wait([keeper], timeout=10)
    assert keeper.done()
    assert renew.times == 1


async def test_one_of_a_claim_does() -> None:
    renew = Unwell()
    others = asyncio.all_tasks()
    async with Watchdog().kept(timedelta(seconds=2), time.monotonic(), renew):
        await renew.asked.wait()
        [keeper] = asyncio.all_tasks() - others
    await asyncio.wait([keeper], timeout=10)
    assert keeper.done()
    assert renew.times == 1


async def test_a_task_that_nobody_cancels_is_not_cancelled() -> None:
    assert not is_cancelled()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.sleep(60)
    assert not is_cancelled()


async def test_a_task_that_lost_its_cancellation_is_cancelled_again() -> None:
    unwell = Unwell()

    async def work() -> None:
        await unwell()
        await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await unwell.asked.wait()
    async with asyncio.timeout(60):
        await end(task, again_after=0.01)
    assert task.cancelled()


async def test_how_a_task_ended_does_not_matter_to_whoever_ends_it() -> None:
    async def fail() -> None:
        raise ValueError

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    await end(task)
    assert not task.cancelled()
