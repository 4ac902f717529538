"""One run of a cron job on a worker: claim it, dispatch its command, record its end."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

from relay.bus import Failed, RequestContext, Result
from relay.bus.context import begun
from relay.concurrency import Slots
from relay.cron import Cron, CronRegistry
from relay.domain.disclosure import full, printable, with_stack, words
from relay.domain.errors import LeaseOver, Outage
from relay.domain.facts import FactSink, ScheduledRunFailed, ScheduledRunFinished, ScheduledRunRetried
from relay.domain.model import Verdict
from relay.domain.retry import Backoff
from relay.domain.schedule import CLAIM, ClaimedRun, RunState, UnknownJob, WaitingRun
from relay.execution.lease import renewing
from relay.ports import Runs

#: How long the worker tries to record the end of a run, in seconds.
_SETTLE_TIMEOUT_S: Final = 60.0
_SETTLE_INTERVAL_S: Final = 1.0
#: How many plain commands of a job may run in threads at once, including those beyond their time limit.
_MAX_THREADS: Final = 4


class RunCron:
    """Runs the cron jobs of a context. A run is repeated only if its worker died or its attempt failed.

    ``error_text``: whether to keep the messages of exceptions, which may hold business data.
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
        """Make one attempt, if the run is still due. Raises DatabaseUnreachable, and UnknownJob for other jobs.

        If the claim cannot be kept, an asynchronous command is cancelled, and LeaseOver is raised.
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
        await self._spanned(job, run, since)

    async def _spanned(self, job: Cron, run: ClaimedRun, since: float) -> None:
        """Make the attempt at the start of its own chain, in a span of its own, and record its end."""
        span = begun(self._context, run.job, run.correlation_id, run.attempt)
        traceparent = None if span is None else span.traceparent
        with RequestContext(correlation_id=run.correlation_id, traceparent=traceparent).use():
            outcome: Result[object] | str = ""
            try:
                outcome = await self._attempt(job, run, since)
            finally:
                if span is not None:
                    span.end(_verdict(outcome).value)
            await self._over(job, run, outcome)

    async def _attempt(self, job: Cron, run: ClaimedRun, since: float) -> Result[object] | str:
        """Dispatch the command; return its result, or why there is none."""
        try:
            async with (
                renewing(CLAIM, since, lambda: self._runs.renew(run)),
                asyncio.timeout(job.time_limit.total_seconds()) as limit,
            ):
                return await self._dispatch(job, run)
        except LeaseOver:
            raise
        except Exception as error:
            # A fault of the infrastructure or the program. The command's writes are rolled back, so try again.
            return f"longer than {job.time_limit}" if limit.expired() else self._why(error)

    async def _over(self, job: Cron, run: ClaimedRun, outcome: Result[object] | str) -> None:
        if isinstance(outcome, str):
            await self._broken(job, run, outcome)
        elif isinstance(outcome, Failed):
            await self._failed(run, printable(str(outcome.error)))
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
        return full(with_stack(error), said) if said else with_stack(error)

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
        """Record the end, and retry during an outage: a run without a recorded end would be repeated."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _SETTLE_TIMEOUT_S
        while True:
            try:
                await self._runs.settle(run, state, error, delay)
            except Outage:
                if loop.time() >= end:
                    raise
                await asyncio.sleep(_SETTLE_INTERVAL_S)
            else:
                return

    async def _dispatch(self, job: Cron, run: ClaimedRun) -> Result[object]:
        """Dispatch the command on its bus."""
        if job.is_async:
            return await job.bus.dispatch_async(await job.command(run.scheduled_for))
        errors: list[BaseException] = []
        slots = self._slots.setdefault(job.name, Slots(_MAX_THREADS))
        result = await slots.in_thread(lambda: job.bus.dispatch(job.command(run.scheduled_for)), errors.append)
        if result is None:
            raise errors[0]
        return result


def _verdict(outcome: Result[object] | str) -> Verdict:
    """What a tracer calls the outcome of an attempt."""
    if isinstance(outcome, str):
        return Verdict.TRANSIENT
    return Verdict.POISON if isinstance(outcome, Failed) else Verdict.PROCESSED
