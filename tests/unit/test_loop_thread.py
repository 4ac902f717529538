"""The event loop of a worker goes on, whatever a task does to it, until the worker ends."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from relay.adapters.dramatiq.loop_thread import LastingLoopThread
from tests.waiting import wait_for

LOG = logging.getLogger("test")


@pytest.fixture
def ended() -> threading.Event:
    return threading.Event()


@pytest.fixture
def thread(ended: threading.Event) -> Iterator[LastingLoopThread]:
    thread = LastingLoopThread(LOG, ended.set)
    thread.start(timeout=60)
    yield thread
    thread.stop()
    assert not thread.is_alive()


async def answer() -> int:
    return 7


def _raise(error: BaseException) -> Any:
    raise error


async def in_own_task(error: BaseException) -> None:
    """As an application does that leaves a task to itself."""

    async def work() -> None:
        _raise(error)

    asyncio.get_running_loop().own = asyncio.create_task(work())  # type: ignore[attr-defined] # keeps it alive


async def in_callback(error: BaseException) -> None:
    asyncio.get_running_loop().call_soon(_raise, error)


async def stopped(_: BaseException) -> None:
    asyncio.get_running_loop().stop()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), BaseException("x")])
@pytest.mark.parametrize("way", [in_own_task, in_callback, stopped])
def test_the_loop_goes_on(
    thread: LastingLoopThread, ended: threading.Event, way: Any, error: BaseException
) -> None:
    thread.run_coroutine(way(error))
    for _ in range(3):
        assert thread.run_coroutine(answer()) == 7
    assert thread.is_alive()
    assert not ended.is_set()


def test_a_process_whose_loop_cannot_go_on_is_told(ended: threading.Event) -> None:
    thread = LastingLoopThread(LOG, ended.set)
    thread.start(timeout=60)

    def lose() -> None:
        thread.loop.run_forever = lambda: _raise(MemoryError())  # type: ignore[method-assign]
        thread.loop.stop()

    thread.loop.call_soon_threadsafe(lose)
    wait_for("the loop has ended", ended.is_set)
    thread.join()
