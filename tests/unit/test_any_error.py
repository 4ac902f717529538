"""Whatever a function of an application raises is a failure of its row, and never the end of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from relay.concurrency import is_ours
from relay.domain.disclosure import stack_of, trace, traced
from relay.domain.model import HandlerResult, Verdict
from relay.execution.calls import answered
from tests.hostile_errors import HOSTILE

ERRORS: dict[str, Callable[[], BaseException]] = {"KeyError": lambda: KeyError("k"), **HOSTILE}


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


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("way", [at_once, later, in_group])
def test_it_is_an_answer_with_class_and_line_and_the_loop_goes_on(
    runner: asyncio.Runner, way: Callable[[BaseException], Awaitable[HandlerResult]], name: str
) -> None:
    result = runner.run(_as_a_task(way(ERRORS[name]())))
    assert result.verdict is (Verdict.REFUSED if "refusal" in name and way is not in_group else Verdict.TRANSIENT)
    check(result.detail)
    check(result.in_full().detail)
    reason, stack = stack_of(result.detail)
    assert f".{way.__name__}:" in reason or "refusal" in name
    assert any(line.endswith(f"in {way.__name__}") for line in stack)
    assert runner.run(_well()) == 1


def raise_it(error: BaseException) -> None:
    raise error


def check(text: str) -> None:
    """What is told can be stored and shown, and is short."""
    assert text.isprintable()
    assert len(text.encode()) < 2_000


@pytest.mark.parametrize("name", ERRORS)
def test_it_can_be_logged(name: str) -> None:
    try:
        raise_it(ERRORS[name]())
    except BaseException as error:
        shown = trace(error)
        values = [*traced(error), *traced(error, in_full=True)]
    assert "in test_it_can_be_logged" in shown
    assert len(shown) < 20_000
    assert all(len(str(it)) < 50_000 for it in values)
    assert values[0]["frames"][0]["name"] == "test_it_can_be_logged"


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
