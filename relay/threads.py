"""Threads for plain functions. They are reused, and the process never waits for them, so a function may hang."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeVar

Result = TypeVar("Result")

#: A thread ends after this time without work, in seconds.
_IDLE_S: Final = 10.0


class LoopThread(Protocol):
    """The event loop of the process, from other threads."""

    loop: asyncio.AbstractEventLoop

    def run_coroutine(self, coro: Coroutine[Any, Any, Result], /) -> Result:
        """Run a coroutine on the loop and wait for it."""


class Threads:
    """Daemon threads that are reused: starting one for each call would hold up the event loop.

    A thread that hangs does not keep the process from stopping.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    def run(self, work: Callable[[], None]) -> None:
        """Run ``work``, which must not raise, in a thread."""
        with self._lock:
            another = self._idle == 0
            if not another:
                self._idle -= 1
        if another:
            threading.Thread(target=self._serve, name="jetrelay-handler", daemon=True).start()
        self._work.put(work)

    def _serve(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=_IDLE_S)
            except Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return
                continue
            work()
            with self._lock:
                self._idle += 1


class Slots:
    """Runs at most ``size`` plain functions in threads at once. Functions past their time-out count too."""

    def __init__(self, size: int) -> None:
        self.slots = asyncio.Semaphore(size)
        self._threads = Threads()

    async def in_thread(self, call: Callable[[], Result], failed: Callable[[BaseException], Result]) -> Result:
        """Run ``call`` in a thread. Its slot is free again when the call ends, even after its time-out."""
        await self.slots.acquire()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Result] = loop.create_future()
        around = contextvars.copy_context()

        def finish(result: Result) -> None:
            self.slots.release()
            if not outcome.done():
                outcome.set_result(result)

        def run() -> None:
            try:
                result = around.run(call)
            except BaseException as error:
                result = failed(error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, result)

        try:
            self._threads.run(run)
        except RuntimeError:
            self.slots.release()
            raise
        return await outcome
