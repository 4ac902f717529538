"""Runs of cron jobs on a worker: the steps of `relay.execution.rows`, and their settlement."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import uuid4

from relay.bus import Failed, RequestContext, Result
from relay.bus.context import Span, begun
from relay.concurrency import Slots, apart, is_ours
from relay.cron import Cron, CronRegistry
from relay.domain.disclosure import printable
from relay.domain.errors import Outage
from relay.domain.facts import FactSink, ScheduledRunFailed, ScheduledRunFinished, ScheduledRunRetried
from relay.domain.model import HandlerResult, Verdict
from relay.domain.policies import Ack, DeadLetter, Disposition, Retry, decide, unanswered
from relay.domain.retry import Backoff, RetryPolicy
from relay.domain.schedule import ClaimedRun, RunState, UnknownJob, WaitingRun
from relay.execution.calls import answer
from relay.execution.rows import Decided
from relay.execution.runners import RunOnLoop
from relay.ports import Runs

#: How many plain commands of a job may run in threads at once, including those beyond their time limit.
_MAX_THREADS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CronTimes:
    """How long a worker tries to record the end of a run during an outage, and its pause between two tries."""

    patience: timedelta = timedelta(seconds=60)
    pause: timedelta = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class CronClaim:
    """A claimed run, its job, and the context and span of the attempt. A run without an attempt left has no span.

    ``since``: `time.monotonic` before the claim was requested.
    """

    job: Cron
    run: ClaimedRun
    since: float
    context: RequestContext
    span: Span | None


RunCron: TypeAlias = RunOnLoop[WaitingRun, CronClaim, CronClaim, HandlerResult, Disposition, None]


@dataclass(frozen=True, slots=True)
class CronRows:
    """The runs of a context's cron jobs: the steps of `relay.execution.rows`, and their settlement.

    ``error_text``: whether to keep the messages of exceptions, which may hold business data.
    """

    context: str
    jobs: CronRegistry
    runs: Runs
    facts: FactSink
    backoff: Backoff = Backoff()
    times: CronTimes = CronTimes()
    error_text: bool = False
    _slots: dict[str, Slots] = field(default_factory=dict)

    after_claim = "after_cron_claim"

    @property
    def lease(self) -> timedelta:
        return self.runs.lease

    async def claim(self, waiting: WaitingRun) -> CronClaim | None:
        """Claim a run, if it is still due. Raises DatabaseUnreachable, and UnknownJob if no module declares it."""
        job = self.jobs.find(waiting.job)
        if job is None:
            raise UnknownJob(
                f"no module that this worker loads declares the cron job {waiting.job!r}",
                hint="name its module in actor_modules",
            )
        since = time.monotonic()
        run = await self.runs.claim(waiting, uuid4(), f"{socket.gethostname()}:{os.getpid()}")
        if run is None:
            return None
        left = run.attempt <= job.max_attempts
        span = begun(self.context, run.job, run.correlation_id, run.attempt) if left else None
        traceparent = None if span is None else span.traceparent
        context = RequestContext(correlation_id=run.correlation_id, traceparent=traceparent)
        return CronClaim(job, run, since, context, span)

    async def renew(self, claim: CronClaim) -> bool:
        return await self.runs.renew(claim.run)

    def request(self, claim: CronClaim) -> CronClaim | Decided[Disposition]:
        if claim.run.attempt > claim.job.max_attempts:
            return Decided(unanswered(claim.job.max_attempts))
        return claim

    async def ask(self, claim: CronClaim) -> HandlerResult:
        """Dispatch the command at the start of its own chain, in a span of its own."""
        verdict = Verdict.TRANSIENT
        try:
            with claim.context.use():
                result = await self._answer(claim)
            verdict = result.verdict
        finally:
            if claim.span is not None:
                claim.span.end(verdict.value)
        return result

    async def _answer(self, claim: CronClaim) -> HandlerResult:
        limit = claim.job.time_limit
        try:
            async with asyncio.timeout(limit.total_seconds()) as clock:
                outcome = await self._dispatch(claim)
        except BaseException as error:
            if is_ours(error):
                raise
            # A fault of the infrastructure or the program. The command's writes are rolled back, so try again.
            result = HandlerResult.failed(f"longer than {limit}") if clock.expired() else answer(error)
            rule = claim.job.retry
            return result if rule is None else await rule.judge_async(result, error, claim.run.attempt)
        if isinstance(outcome, Failed):
            return HandlerResult(Verdict.REFUSED, printable(str(outcome.error)))
        return HandlerResult(Verdict.PROCESSED)

    async def _dispatch(self, claim: CronClaim) -> Result[object]:
        """Dispatch the command on its bus."""
        job, at = claim.job, claim.run.scheduled_for
        if job.is_async:
            return await apart(_dispatched(job, at))
        errors: list[BaseException] = []
        slots = self._slots.setdefault(job.name, Slots(_MAX_THREADS))
        result = await slots.in_thread(lambda: job.bus.dispatch(job.command(at)), errors.append)
        if result is None:
            raise errors[0]
        return result

    def decide(self, result: HandlerResult, claim: CronClaim, _seconds: float) -> Disposition:
        policy = RetryPolicy(max_attempts=claim.job.max_attempts, backoff=self.backoff)
        shown = result.in_full() if self.error_text else result
        age = datetime.now(UTC) - claim.run.scheduled_for
        verdict = decide(shown, claim.run.attempt, policy, random.random(), age)  # noqa: S311
        # Without "exhausted: 5 attempts": a run shows its attempts beside its error.
        return replace(verdict, reason=shown.detail) if isinstance(verdict, DeadLetter) else verdict

    async def settle(self, claim: CronClaim, verdict: Disposition) -> None:
        """Record the end of an attempt. A scheduler sends a run that is to be tried again."""
        with claim.context.use():
            run, about = claim.run, self._about(claim.run)
            match verdict:
                case Ack():
                    await self._record(run, RunState.FINISHED)
                    self.facts(ScheduledRunFinished(**about))
                case Retry(delay, error, counts):
                    await self._record(run, RunState.WAITING, error, delay, counts=counts)
                    self.facts(ScheduledRunRetried(**about, error=error, delay_seconds=delay.total_seconds()))
                case DeadLetter(reason):
                    await self._record(run, RunState.FAILED, reason)
                    self.facts(ScheduledRunFailed(**about, error=reason))

    def _about(self, run: ClaimedRun) -> dict[str, Any]:
        return {
            "context": self.context,
            "job": run.job,
            "scheduled_for": run.scheduled_for,
            "correlation_id": run.correlation_id,
            "attempts": run.attempt,
        }

    async def _record(
        self,
        run: ClaimedRun,
        state: RunState,
        error: str | None = None,
        delay: timedelta = timedelta(),
        *,
        counts: bool = True,
    ) -> None:
        """Record the end, and retry during an outage: a run without a recorded end would be repeated."""
        end = time.monotonic() + self.times.patience.total_seconds()
        while True:
            try:
                return await self.runs.settle(run, state, error, delay, counts=counts)
            except Outage:
                if time.monotonic() >= end:
                    raise
                await asyncio.sleep(self.times.pause.total_seconds())


async def _dispatched(job: Cron, at: datetime) -> Result[object]:
    return await job.bus.dispatch_async(await job.command(at))
