"""Threads for plain functions: used again, left behind when a function hangs, and never awaited by the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar

Result = TypeVar("Result")

#: After how long without work a thread ends, in seconds.
_IDLE: Final = 10.0


class Threads:
    """Daemon threads that are used again: beginning one for each call would hold up the event loop.

    One that hangs does not keep the process from stopping.
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
                work = self._work.get(timeout=_IDLE)
            except Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return
                continue
            work()
            with self._lock:
                self._idle += 1


class Overdue(Exception):
    """The time is up. Whatever was begun goes on in its thread."""


class Room(Generic[Result]):
    """Runs calls for threads that wait for them, at most ``size`` at once, those left behind included.

    A call runs in a thread of its own: a hop costs a few microseconds and lets the one who waits go on when the
    function does not.
    """

    def __init__(self, threads: Threads, size: int, failed: Callable[[BaseException], Result]) -> None:
        self._threads = threads
        # A queue of places and no semaphore: it takes a tenth of the time.
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(size):
            self._free.put(None)
        self._failed = failed

    def call(
        self, function: Callable[[], Result], seconds: float, every: float, meanwhile: Callable[[], None]
    ) -> Result:
        """Call a function and wait for so long; ``meanwhile`` is called every so many seconds.

        What the function raises is made a result. Raises Overdue; the function may not even have been begun then.
        """
        wait = _Wait(seconds, every, meanwhile)
        wait.until(self._take)
        results: list[Result] = []
        done = threading.Lock()
        done.acquire()

        def run() -> None:
            try:
                results.append(function())
            except BaseException as error:
                results.append(self._failed(error))
            self._free.put(None)
            done.release()

        try:
            self._threads.run(run)
        except RuntimeError:
            self._free.put(None)
            raise
        wait.until(done.acquire)
        return results[0]

    def _take(self, timeout: float) -> bool:
        try:
            self._free.get(timeout=timeout)
        except Empty:
            return False
        return True


class _Wait:
    """Waits for so long in all. ``meanwhile`` is called every so many seconds."""

    def __init__(self, seconds: float, every: float, meanwhile: Callable[[], None]) -> None:
        self._end = time.monotonic() + seconds
        self._every = every
        self._meanwhile = meanwhile

    def until(self, acquire: Callable[..., bool]) -> None:
        """Wait for a lock or a semaphore. Raises Overdue."""
        while not acquire(timeout=max(0.0, min(self._every, self._end - time.monotonic()))):
            if time.monotonic() >= self._end:
                raise Overdue
            self._meanwhile()
