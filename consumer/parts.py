"""The parts of a duty: many small, repeated pieces of work of a context, in one job.

The job takes the parts that are due and runs them at the same time on the event loop. A part that fails or hangs
delays no other: after some time the next job may do the rest. Redis holds until when each part rests. So a part
whose worker died is due again within seconds, and every part is due when Redis has lost its data.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from relay.adapters.gate import TAKEN, Gates
from relay.concurrency import end, is_cancelled
from relay.domain.errors import Outage
from relay.domain.facts import FactSink, OutageSeen
from relay.jobs import Duty

#: After this time the next job may begin. Parts that are not done go on.
_PATIENCE_S: Final = 3.0


class Slots:
    """Limits what runs at the same time. A context has a share of the process's slots, also one that hangs."""

    def __init__(self, own: int, shared: asyncio.Semaphore) -> None:
        self._own, self._shared = asyncio.Semaphore(own), shared

    async def __aenter__(self) -> None:
        await self._own.acquire()
        try:
            await self._shared.acquire()
        except BaseException:
            self._own.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._shared.release()
        self._own.release()

    async def sleep(self, seconds: float) -> None:
        """Give the slot back while this sleeps."""
        await self.__aexit__()
        try:
            await asyncio.sleep(seconds)
        finally:
            await self.__aenter__()


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of work, and how often it is due. It runs when one of ``slots`` is free."""

    name: str
    every: timedelta
    run: Callable[[], Awaitable[object]]
    slots: Slots


class Work:
    """The parts that one job of a duty has taken. They run at the same time."""

    def __init__(
        self, duty: Duty, parts: Iterable[Part], gates: Gates, facts: FactSink, stopping: Callable[[], bool]
    ) -> None:
        self._duty, self._gates, self._facts, self._stopping = duty, gates, facts, stopping
        self._parts = {part.name: part for part in parts}
        self._running: dict[str, asyncio.Task[None]] = {}
        #: Until when parts rest that have ended and are not yet noted in Redis, in milliseconds of its clock.
        self._until: dict[str, int] = {}
        self._taken_at, self._began = 0, 0.0
        self._errors: list[Exception] = []
        self._keeper: asyncio.Task[None] | None = None

    async def begin(self, every: timedelta) -> None:
        """Take the parts that are due, and begin them.

        ``every``: how often jobs are sent. Raises QueueUnreachable.
        """
        # Parts count as due a little early, because this job may begin sooner after its tick than the last one
        # did.
        early = every / 2
        longest = {name: part.every for name, part in self._parts.items()}
        self._began = time.monotonic()
        self._taken_at, taken = await self._gates.take(self._duty.key, longest)
        for name in taken:
            part = self._parts[name]
            self._running[name] = asyncio.create_task(self._run(part, self._taken_at + _ms(part.every - early)))
        if taken:
            self._keeper = asyncio.create_task(self._keep())

    async def patiently(self) -> None:
        """Wait until all is done, or until the next job may begin."""
        if self._running:
            await asyncio.wait([*self._running.values()], timeout=_PATIENCE_S)
        await self._note()

    async def end(self) -> None:
        """Wait until all is done. Raises the errors of parts, other than outages."""
        await asyncio.gather(*self._running.values())
        if self._keeper is not None:
            await end(self._keeper)
        await self._note()
        match self._errors:
            case []:
                return
            case [error]:
                raise error
            case errors:
                raise ExceptionGroup("several parts failed", errors)

    async def _run(self, part: Part, rests_until: int) -> None:
        """Run a part. After an outage it is tried again soon; any other error counts as a run."""
        until = rests_until
        try:
            async with part.slots:
                if self._stopping():
                    until = 0
                else:
                    await part.run()
        except Outage as error:
            until = 0
            self._facts(OutageSeen(context=self._duty.context, server=error.server, error=error.told))
        except Exception as error:
            self._errors.append(error)
        finally:
            self._until[part.name] = until

    async def _keep(self) -> None:
        """Note in Redis that running parts go on, and that ended parts rest."""
        while not is_cancelled():
            await asyncio.sleep(TAKEN.total_seconds() / 3)
            await self._note()

    async def _note(self) -> None:
        goes_on = self._taken_at + _ms(timedelta(seconds=time.monotonic() - self._began) + TAKEN)
        running = {name: goes_on for name, task in self._running.items() if not task.done()}
        ended, self._until = self._until, {}
        for name in ended:
            self._running.pop(name, None)
        await self._gates.rest(self._duty.key, {**running, **ended})


def _ms(duration: timedelta) -> int:
    return int(duration / timedelta(milliseconds=1))
