"""Whatever a function of an application raises is a failure of its row, and never the end of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from relay.concurrency import is_ours
from relay.domain.model import HandlerResult, Verdict
from relay.execution.calls import answered


class TimeIsUp(BaseException):
    """As a library may have its own."""


ERRORS = [KeyError("k"), KeyboardInterrupt(), SystemExit(1), GeneratorExit(), TimeIsUp(), asyncio.CancelledError()]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


async def at_once(error: BaseException) -> HandlerResult:
    raise error


async def later(error: BaseException) -> HandlerResult:
    await asyncio.sleep(0)
    raise error


async def in_group(error: BaseException) -> HandlerResult:
    raise BaseExceptionGroup("several", [error])


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", [at_once, later, in_group])
def test_it_is_an_answer_and_the_loop_goes_on(
    runner: asyncio.Runner, way: Callable[[BaseException], Awaitable[HandlerResult]], error: BaseException
) -> None:
    result = runner.run(_as_a_task(way(error)))
    assert result.verdict is Verdict.TRANSIENT
    assert result.detail
    assert runner.run(_well()) == 1


async def _as_a_task(work: Awaitable[HandlerResult]) -> HandlerResult:
    return await asyncio.create_task(answered(work, 60))


async def _well() -> int:
    return 1


def test_our_own_cancellation_is_no_answer(runner: asyncio.Runner) -> None:
    async def cancel() -> bool:
        task = asyncio.create_task(answered(_waits(), 60))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert runner.run(cancel())


def test_the_end_of_a_coroutine_that_is_thrown_away_is_no_answer(runner: asyncio.Runner) -> None:
    async def within() -> bool:
        return is_ours(GeneratorExit())

    assert is_ours(GeneratorExit())
    assert not runner.run(within())


async def _waits() -> HandlerResult:
    await asyncio.get_running_loop().create_future()
    raise AssertionError
