"""A tick by the event loop's own timer: a clock that keeps books of its jobs costs more than most ticks do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any


class Beat:
    """Runs ``tick`` now and then every so often, until stopped; a tick under way comes to its end then.

    A late tick runs at once and stands for all that were missed; one that hangs is not joined by others.
    ``tick`` raises nothing.
    """

    def __init__(self, every: timedelta, tick: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._every, self._tick = every.total_seconds(), tick
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time()
        self._timer: asyncio.Handle | None = self._loop.call_soon(self._go)
        self._task: asyncio.Task[None] | None = None

    @property
    def next_at(self) -> datetime:
        """When the next tick is due."""
        return datetime.now(UTC) + timedelta(seconds=self._due - self._loop.time())

    def stop(self) -> None:
        """Begin no tick any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go(self) -> None:
        self._task = self._loop.create_task(self._tick())
        self._task.add_done_callback(self._go_on)

    def _go_on(self, _task: asyncio.Task[None]) -> None:
        if self._timer is not None:
            self._due = max(self._due + self._every, self._loop.time())
            self._timer = self._loop.call_at(self._due, self._go)
