"""The thread of a worker's event loop. It ends when the worker ends, and not before.

asyncio ends a loop when a task or a callback raises SystemExit or KeyboardInterrupt. Code of an application may do
so in a task of its own, or stop the loop. Without its loop a worker lives on and does nothing. So the loop goes
on.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from dramatiq.asyncio import EventLoopThread

from relay.concurrency import LOOP_ENDED

Result = TypeVar("Result")

#: How long a caller waits for the loop to go on, in seconds.
_PATIENCE_S: Final = 1.0

_log = logging.getLogger("relay")


def end_process() -> None:
    """End this process at once, so that its supervisor starts another. Dramatiq then ends its other workers."""
    logging.shutdown()
    os._exit(LOOP_ENDED)


class LastingLoopThread(EventLoopThread):
    """Runs the loop until `stop`. ``ended``: called in this thread if the loop has ended all the same."""

    def __init__(self, logger: logging.Logger, ended: Callable[[], None] = end_process) -> None:
        super().__init__(logger)
        self._ended = ended
        self._stopping = threading.Event()

    def run(self) -> None:
        """Run the loop, again and again until it is to stop."""
        try:
            while not self._stopping.is_set() and not self.loop.is_closed():
                self._run_once()
        except BaseException:
            _log.exception("the event loop cannot go on")
        if not self._stopping.is_set():
            _log.critical("the event loop has ended: this process ends too")
            self._ended()
        self.loop.close()

    def _run_once(self) -> None:
        try:
            self.loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            _log.error("a task has raised %s; the event loop goes on", type(error).__name__, exc_info=error)
        else:
            if not self._stopping.is_set():
                _log.error("a task has stopped the event loop; it goes on")

    def stop(self) -> None:
        """Stop the loop and wait for the thread."""
        self._stopping.set()
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.join()
            self.loop.close()

    def run_coroutine(self, coro: Coroutine[Any, Any, Result]) -> Result:  # type: ignore[override]
        """Run a coroutine on the loop and wait for its result. Raises RuntimeError if the loop has ended."""
        until = time.monotonic() + _PATIENCE_S
        while not self.loop.is_running() and time.monotonic() < until and self.is_alive():
            time.sleep(0.01)
        return super().run_coroutine(coro)
