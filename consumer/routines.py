"""The routines of a duty: many small pieces of work of a context that repeat, in one job.

The job claims the routines that are due and runs them at the same time on the event loop. A routine that fails or
hangs delays no other: after some time the next job may run the others. Redis holds until when each routine rests.
So a routine whose worker died is due again within seconds, and all are due when Redis has lost its data.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from relay.adapters.dramatiq.gates import Gates
from relay.concurrency import end, is_cancelled
from relay.domain.errors import Outage
from relay.domain.facts import FactSink, OutageSeen
from relay.jobs import Duty

#: A job ends after this time, in seconds, so that the next may begin. Routines that still run go on.
_PATIENCE_S: Final = 3.0


class RoutineSlots:
    """Limits the routines that run at the same time: ``own`` of a context, within the ``shared`` of the process.

    So a context whose routines hang leaves slots to the others.
    """

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
class Routine:
    """One piece of work, and how often it is due. It runs when one of ``slots`` is free."""

    name: str
    every: timedelta
    run: Callable[[], Awaitable[object]]
    slots: RoutineSlots


class RunRoutines:
    """One job of a duty: it claims the routines that are due, and runs them at the same time.

    ``patience``: how long `patiently` waits, in seconds.
    """

    def __init__(
        self,
        duty: Duty,
        routines: Iterable[Routine],
        gates: Gates,
        facts: FactSink,
        stopping: Callable[[], bool],
        *,
        patience: float = _PATIENCE_S,
    ) -> None:
        self._duty, self._gates, self._facts, self._stopping = duty, gates, facts, stopping
        self._patience = patience
        self._routines = {routine.name: routine for routine in routines}
        self._running: dict[str, asyncio.Task[None]] = {}
        #: Routines that have ended, not yet noted in Redis: until when each rests, in milliseconds of its clock.
        self._rests_until: dict[str, int] = {}
        self._claimed_at, self._began = 0, 0.0
        self._errors: list[Exception] = []
        self._keeper: asyncio.Task[None] | None = None

    async def begin(self, every: timedelta) -> None:
        """Claim the routines that are due, and begin them.

        ``every``: how often jobs are sent. Raises QueueUnreachable.
        """
        # Due a little early: this job may begin sooner after its tick than the last one did.
        early = every / 2
        longest = {name: routine.every for name, routine in self._routines.items()}
        self._began = time.monotonic()
        self._claimed_at, due = await self._gates.claim(self._duty.key, longest)
        for name in due:
            routine = self._routines[name]
            rests_until = self._claimed_at + _ms(routine.every - early)
            self._running[name] = asyncio.create_task(self._run(routine, rests_until))
        if due:
            self._keeper = asyncio.create_task(self._keep())

    async def patiently(self) -> None:
        """Wait until all is done, or until the next job may begin."""
        if self._running:
            await asyncio.wait([*self._running.values()], timeout=self._patience)
        await self._note()

    async def end(self) -> None:
        """Wait until all is done. Raises the errors of routines, other than outages."""
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
                raise ExceptionGroup("several routines failed", errors)

    async def _run(self, routine: Routine, rests_until: int) -> None:
        """Run a routine. After an outage it is tried again soon; any other error counts as a run."""
        until = rests_until
        try:
            async with routine.slots:
                if self._stopping():
                    until = 0
                else:
                    await routine.run()
        except Outage as error:
            until = 0
            self._facts(OutageSeen(context=self._duty.context, server=error.server, error=error.explanation))
        except Exception as error:
            self._errors.append(error)
        finally:
            self._rests_until[routine.name] = until

    async def _keep(self) -> None:
        """Note in Redis that running routines go on, and that ended ones rest."""
        while not is_cancelled():
            await asyncio.sleep(self._gates.times.claim.total_seconds() / 3)
            await self._note()

    async def _note(self) -> None:
        passed = timedelta(seconds=time.monotonic() - self._began)
        goes_on = self._claimed_at + _ms(passed + self._gates.times.claim)
        running = {name: goes_on for name, task in self._running.items() if not task.done()}
        ended, self._rests_until = self._rests_until, {}
        for name in ended:
            self._running.pop(name, None)
        await self._gates.rest(self._duty.key, {**running, **ended})


def _ms(duration: timedelta) -> int:
    return int(duration / timedelta(milliseconds=1))
