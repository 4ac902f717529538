"""A worker that publishes hears the hints of producers itself, and begins at once.

Otherwise a hint goes from the scheduler through Redis to a worker. Of the workers, one listens to a context. What
it does not do within a moment, a job does that the scheduler sends: the tick stays the guarantee.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from relay.adapters.postgres.wakeup import EVENTS, Wakeup
from relay.commands.publish import PublishOutboxEvents
from relay.concurrency import end, is_cancelled
from relay.domain.errors import RelayError
from relay.domain.ordering import Shard

_log = logging.getLogger("relay")

#: So many hints may lead to nothing by chance: a job was quicker.
_IN_VAIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenLimits:
    """Times in seconds.

    ``look``: how often to see whether to listen, and whether the connection is there. ``rest``, ``deaf``: the
    pause after an error, and where no hints arrive. ``batches``: after so many for one hint, the rest is a load:
    jobs publish it, in several processes. ``vain``: the pause while hints lead to nothing: they may be for another
    context of the database. ``finish``: how long a batch under way may take when the process ends.
    """

    look: float = 1.0
    rest: float = 1.0
    deaf: float = 60.0
    batches: int = 4
    vain: float = 0.05
    finish: float = 1.0


class PublishOnHint:
    """Listens to one context while ``wanted`` says so, and publishes after a hint.

    ``changed``: called when ``listening`` has changed: whether hints are heard now.
    """

    def __init__(
        self,
        wakeup: Wakeup,
        publish: PublishOutboxEvents,
        wanted: Callable[[], bool],
        changed: Callable[[], None] = lambda: None,
        limits: ListenLimits = ListenLimits(),
    ) -> None:
        self._wakeup, self._publish, self._limits = wakeup, publish, limits
        self._wanted, self._changed = wanted, changed
        self._hinted, self._ends = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: How many hints in a row have led to nothing.
        self._vain = 0
        self.listening = False

    async def start(self) -> None:
        """Begin to listen, in the background."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop listening. A batch that takes long is given up, and another worker publishes it."""
        self._ends.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=self._limits.finish)
            await end(self._task)
        await self._silent()

    async def _run(self) -> None:
        while not (is_cancelled() or self._ends.is_set()):
            pause = self._limits.rest
            try:
                pause = await self._turn()
            except RelayError:
                # The job that the next tick sends meets the same, says so, and has a back-off of its own.
                self._set(False)
            except Exception:
                self._set(False)
                _log.exception("a worker that hears hints could not publish; jobs do it")
            await _either(self._ends, pause)

    async def _turn(self) -> float:
        """Wait for a hint and publish; returns how long to rest then."""
        if not self._wanted():
            await self._silent()
            return self._limits.look
        self._wakeup.listen(EVENTS, self._hinted.set)
        self._set(await self._wakeup.hear())
        if not self.listening:
            await self._wakeup.close()
            return self._limits.deaf
        if await _either(self._hinted, self._limits.look) and not self._ends.is_set():
            self._hinted.clear()
            batch = count()
            published = await self._publish.drain(
                Shard(0, 1), lambda: next(batch) < self._limits.batches and not self._ends.is_set()
            )
            self._vain = 0 if published else self._vain + 1
        return self._limits.vain if self._vain > _IN_VAIN else 0.0

    async def _silent(self) -> None:
        if self.listening:
            self._set(False)
            await self._wakeup.close()

    def _set(self, listening: bool) -> None:
        before, self.listening = self.listening, listening
        if listening != before:
            self._changed()


async def _either(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, for so long at most; returns whether it is set."""
    if seconds > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
    return event.is_set()
