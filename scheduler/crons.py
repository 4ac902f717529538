"""Application cron jobs: opens the runs that are due and enqueues them for the fleet.

A run is a row before it is a message. So neither a lost queue nor a dead scheduler loses it. Its unique key makes
sure that it is opened only once.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from uuid_utils.compat import uuid7

from relay.adapters.postgres.schedule import PostgresLease, PostgresSchedule
from relay.cron import Cron
from relay.domain.facts import FactSink, ScheduledRunMissed
from relay.domain.schedule import Due, RunState, WaitingRun, due

#: How often to check whether a job is due. While none is due, the check is only a comparison.
EVERY: Final = timedelta(milliseconds=500)
#: How often to read the table although nothing is due, in seconds: for retries, lost runs and a changed clock.
_SWEEP_INTERVAL_S: Final = 2.0


def _utc_now() -> datetime:
    return datetime.now(UTC)


class CronTick:
    """Opens the runs that are due and enqueues those that wait. It may run twice or be missed without harm.

    ``clock``: what tells the time.
    """

    def __init__(
        self,
        context: str,
        jobs: Sequence[Cron],
        lead: PostgresLease,
        runs: PostgresSchedule,
        send: Callable[[Sequence[WaitingRun]], Awaitable[None]],
        facts: FactSink,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._context, self._clock = context, clock
        self.jobs = {job.name: job for job in jobs}
        self._lead, self._runs, self._send, self._facts = lead, runs, send, facts
        self._next: datetime | None = None
        self._swept = 0.0

    def forget(self) -> None:
        """Read the table at the next tick, because another scheduler may have led meanwhile."""
        self._next, self._swept = None, 0.0

    async def tick(self) -> None:
        """Open and enqueue what is due. Raises DatabaseUnreachable."""
        now = self._clock()
        if self._next is not None and now < self._next and time.monotonic() < self._swept + _SWEEP_INTERVAL_S:
            return
        opened = [await self._open(name, run) for name, run in await self._due(now)]
        await self._send(await self._runs.waiting())
        following = min(filter(None, (self.next_run(name, now) for name in self.jobs)), default=None)
        # If a run was not opened, either another leader opens it or it is still ours: look again at the next tick.
        self._next = following if all(opened) else None
        self._swept = time.monotonic()

    async def _due(self, now: datetime) -> list[tuple[str, Due]]:
        since = await self._runs.last_fired(self.jobs)
        jobs = [(self.jobs[name], last) for name, last in since.items()]
        looked = [(job.name, due(job.expression, last, now, job.misfire_grace)) for job, last in jobs]
        return [(name, run) for name, run in looked if run is not None]

    async def run_now(self, name: str, requested_at: datetime) -> None:
        """Run a job once for an operator. Raises DatabaseUnreachable."""
        await self._open(name, Due(requested_at))
        await self._send(await self._runs.waiting())

    def next_run(self, name: str, now: datetime) -> datetime | None:
        """Return when a job fires next."""
        return self.jobs[name].expression.after(now)

    async def _open(self, name: str, run: Due) -> bool:
        state = await self._lead.open(name, run, uuid7())
        if state is RunState.MISSED:
            missed = ScheduledRunMissed(context=self._context, job=name, scheduled_for=run.scheduled_for)
            self._facts(missed)
        return state is not None
