"""One run of a cron job on a worker: claim it, dispatch its command, record how it ended."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from datetime import timedelta
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

from relay.bus import Failed, RequestContext, Result
from relay.cron import Cron, CronRegistry
from relay.domain.backoff import Backoff
from relay.domain.disclosure import printable, told, words
from relay.domain.errors import LeaseOver, Outage
from relay.domain.facts import FactSink, ScheduledRunFailed, ScheduledRunFinished, ScheduledRunRetried
from relay.domain.schedule import CLAIM, ClaimedRun, RunState, UnknownJob, WaitingRun
from relay.leases import kept
from relay.threads import Slots

#: How long recording the end is tried, in seconds.
_SETTLE: Final = 60.0
_SETTLE_AGAIN: Final = 1.0
#: How many plain commands of a job may be in their threads at once, those that outlived their time limit included.
_HANGING: Final = 4


class Runs(Protocol):
    """The record of runs in a context's database. All raise DatabaseUnreachable."""

    async def claim(self, run: WaitingRun, token: UUID, who: str) -> ClaimedRun | None:
        """Take up a run for a while; None when there is nothing to do. Of one job one run is claimed at a time."""

    async def renew(self, run: ClaimedRun) -> bool:
        """Keep the claim for another while. False when it was lost."""

    async def settle(
        self, run: ClaimedRun, state: RunState, error: str | None = None, delay: timedelta = timedelta()
    ) -> None:
        """Record how an attempt ended. Repeatable; nothing happens once the claim is another's."""


class RunCron:
    """Runs the cron jobs of a context. A run happens again only if its worker died or its attempt broke.

    ``error_text``: whether to keep what exceptions say themselves, data of the business or not.
    """

    def __init__(
        self,
        context: str,
        jobs: CronRegistry,
        runs: Runs,
        facts: FactSink,
        backoff: Backoff = Backoff(),
        *,
        error_text: bool = False,
    ) -> None:
        self._context, self._error_text = context, error_text
        self._jobs, self._runs, self._facts, self._backoff = jobs, runs, facts, backoff
        self._who = f"{socket.gethostname()}:{os.getpid()}"
        self._slots: dict[str, Slots] = {}

    async def run(self, wanted: WaitingRun) -> None:
        """Run once, if it is still to be run. Raises DatabaseUnreachable, and UnknownJob for what is not ours.

        An asynchronous command is cancelled where the claim cannot be kept, which raises LeaseOver.
        """
        job = self._jobs.find(wanted.job)
        if job is None:
            raise UnknownJob(
                f"no module that this worker loads declares the cron job {wanted.job!r}",
                hint="name its module in actor_modules",
            )
        since = time.monotonic()
        run = await self._runs.claim(wanted, uuid4(), self._who)
        if run is None:
            return
        if run.attempt > job.max_attempts:
            await self._failed(run, "its worker died in every attempt")
            return
        try:
            async with (
                kept(CLAIM, since, lambda: self._runs.renew(run)),
                asyncio.timeout(job.time_limit.total_seconds()) as limit,
            ):
                result = await self._dispatch(job, run)
        except LeaseOver:
            raise
        except Exception as error:
            # A fault of the infrastructure or of the program: what the command wrote is rolled back, so try again.
            await self._broken(job, run, f"longer than {job.time_limit}" if limit.expired() else self._why(error))
            return
        await self._over(run, result)

    async def _over(self, run: ClaimedRun, result: Result[object]) -> None:
        if isinstance(result, Failed):
            await self._failed(run, printable(str(result.error)))
        else:
            await self._settle(run, RunState.FINISHED)
            self._facts(ScheduledRunFinished(**self._of(run)))

    async def _broken(self, job: Cron, run: ClaimedRun, error: str) -> None:
        if run.attempt >= job.max_attempts:
            await self._failed(run, error)
            return
        delay = self._backoff.delay(run.attempt, random.random())  # noqa: S311
        await self._settle(run, RunState.WAITING, error, delay)
        self._facts(ScheduledRunRetried(**self._of(run), error=error, delay_seconds=delay.total_seconds()))

    async def _failed(self, run: ClaimedRun, error: str) -> None:
        await self._settle(run, RunState.FAILED, error)
        self._facts(ScheduledRunFailed(**self._of(run), error=error))

    def _why(self, error: Exception) -> str:
        said = words(error) if self._error_text else ""
        return f"{told(error)}: {said}" if said else told(error)

    def _of(self, run: ClaimedRun) -> dict[str, Any]:
        return {
            "context": self._context,
            "job": run.job,
            "scheduled_for": run.scheduled_for,
            "correlation_id": run.correlation_id,
            "attempts": run.attempt,
        }

    async def _settle(
        self, run: ClaimedRun, state: RunState, error: str | None = None, delay: timedelta = timedelta()
    ) -> None:
        """Record the end, through an outage if need be: a run whose end is unknown is run again."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _SETTLE
        while True:
            try:
                await self._runs.settle(run, state, error, delay)
            except Outage:
                if loop.time() >= end:
                    raise
                await asyncio.sleep(_SETTLE_AGAIN)
            else:
                return

    async def _dispatch(self, job: Cron, run: ClaimedRun) -> Result[object]:
        """Hand the command to its bus, at the beginning of a chain of its own."""
        with RequestContext(correlation_id=run.correlation_id).use():
            if job.is_async:
                return await job.bus.dispatch_async(await job.command(run.scheduled_for))
            errors: list[BaseException] = []
            slots = self._slots.setdefault(job.name, Slots(_HANGING))
            result = await slots.in_thread(lambda: job.bus.dispatch(job.command(run.scheduled_for)), errors.append)
        if result is None:
            raise errors[0]
        return result
