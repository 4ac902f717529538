"""A tick by the event loop's own timer. The scheduler library's bookkeeping costs more than most ticks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any


class Beat:
    """Runs ``tick`` at once and then at an interval, until stopped. A running tick is not cut short by the stop.

    A late tick runs at once and replaces all missed ones. No second tick starts while one hangs.
    ``tick`` must raise nothing.
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
        """Begin no more ticks."""
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
