"""Plain functions in the calling thread, watched from another one.

A hop to a thread and back often costs more than the function itself. So the calling thread makes the call, and a
watcher does what is due meanwhile. Nobody can stop the function when its time is up. Then the watcher has its row
settled, and has the calling thread replaced by another one.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

Result = TypeVar("Result")

#: How often the watcher looks, in seconds. Time limits are exact to this.
_LOOK: Final = 0.05
#: The watcher ends after this many looks without a call.
_IDLE: Final = 100


class Overdue(Exception):
    """The time was up before the function returned."""


@dataclass(eq=False, slots=True)
class _Call:
    """A call under way. ``given_up``: its time is up, and its result does not count any more."""

    end: float
    renew: float
    every: float
    meanwhile: Callable[[], None]
    overdue: Callable[[], None]
    given_up: bool = False


class Watch:
    """Watches the calls of a process."""

    def __init__(self) -> None:
        self._calls: set[_Call] = set()
        self._lock = threading.Lock()
        self._watching = False

    def call(
        self,
        function: Callable[[], Result],
        seconds: float,
        every: float,
        meanwhile: Callable[[], None],
        overdue: Callable[[], None],
    ) -> Result:
        """Call a function. ``meanwhile`` is called every ``every`` seconds, ``overdue`` once after ``seconds``.

        Both are called in another thread, and must not raise or block. Raises Overdue when the time was up before
        the function returned, and otherwise what the function raises.
        """
        now = time.monotonic()
        call = _Call(now + seconds, now + every, every, meanwhile, overdue)
        with self._lock:
            self._calls.add(call)
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._run, name="jetrelay-watch", daemon=True).start()
        try:
            return contextvars.copy_context().run(function)
        finally:
            with self._lock:
                self._calls.discard(call)
            if call.given_up:
                raise Overdue

    def _run(self) -> None:
        idle = 0
        while idle < _IDLE or not self._ends():
            time.sleep(_LOOK)
            idle = idle + 1 if not self._calls else 0
            self._look(time.monotonic())

    def _ends(self) -> bool:
        with self._lock:
            self._watching = bool(self._calls)
            return not self._watching

    def _look(self, now: float) -> None:
        with self._lock:
            late = [call for call in self._calls if now >= call.end]
            long = [call for call in self._calls if call.renew <= now < call.end]
            for call in late:
                call.given_up = True
            self._calls.difference_update(late)
        for call in late:
            call.overdue()
        for call in long:
            call.renew = now + call.every
            call.meanwhile()
