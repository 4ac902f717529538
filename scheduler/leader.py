"""Runs the jobs of one context while this process leads it, and records them in the database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from relay.adapters.postgres.schedule import PostgresLease, PostgresSchedule
from relay.concurrency import is_cancelled
from relay.domain.errors import DatabaseUnreachable, RelayError, SchemaMissing
from relay.domain.facts import FactSink, LeadLost, LeadTaken
from relay.domain.schedule import EVERY, JobRecord, Lead
from scheduler.crons import CronTick
from scheduler.polls import TICK_TIMEOUT_S, outage
from scheduler.ticks import Tick
from scheduler.timer import IntervalTimer

#: How many renewals fit into a lease. Two attempts may fail, and the lease is still kept.
_RENEWALS_PER_LEASE: Final = 3.4
#: The longest pause between two checks of a lease, in seconds. A holder may give it up; operators request jobs.
_LOOK_INTERVAL_S: Final = 1.5
#: How soon after the end of another process's lease to try to take it, in seconds.
_RETRY_AFTER_S: Final = 0.05

#: How often the runs of jobs are recorded, in rounds of the lease.
_REPORT_ROUNDS: Final = 6

_log = logging.getLogger("relay.scheduler")


class Lease:
    """Knows whether this process leads. ``held`` ends no later than the lease in the database.

    The lease of a context is in its own database: an outage of one stops the jobs of its own context only. The
    database's clock decides. A process only measures the time since its last renewal, so after a long pause of the
    process ``held`` is false at once, without a query.
    """

    def __init__(
        self, store: PostgresLease, ttl: timedelta, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._ttl, self._monotonic = store, ttl, monotonic
        self._until = 0.0
        #: When to try again, in seconds.
        self.pause = 0.0

    @property
    def held(self) -> bool:
        """Whether this process leads now."""
        return self._monotonic() < self._until

    async def take(self) -> Lead:
        """Take or renew the lease. Raises DatabaseUnreachable and SchemaMissing; the lease can then expire."""
        self.pause = min(_LOOK_INTERVAL_S, self._ttl.total_seconds() / _RENEWALS_PER_LEASE)
        before = self._monotonic()
        lead = await self._store.take(self._ttl)
        if lead.term is None:
            self._until = 0.0
            self.pause = min(self.pause, lead.remaining + _RETRY_AFTER_S)
        else:
            self._until = before + self._ttl.total_seconds()
        return lead

    async def release(self) -> None:
        """Let another scheduler lead from now on. Raises DatabaseUnreachable and SchemaMissing."""
        self._until = 0.0
        await self._store.release()


class Leader:
    """Takes the lead of a context when it is free, runs its jobs, and stops them when the lead is lost.

    Every job may run twice without harm. So a leader that has not noticed yet that it lost the lead does no harm.
    ``release`` releases what only a leader needs.
    """

    def __init__(
        self,
        context: str,
        ticks: Sequence[Tick],
        crons: CronTick,
        lease: Lease,
        table: PostgresSchedule,
        timer: IntervalTimer,
        facts: FactSink,
        release: Callable[[], Awaitable[None]],
    ) -> None:
        self._context, self._ticks, self._crons = context, {tick.name: tick for tick in ticks}, crons
        self._lease, self._table, self._timer, self._facts, self._release = lease, table, timer, facts, release
        self._leads = False
        self._rounds = 0
        self._reported: str | None = None
        self._last: dict[str, tuple[datetime, str | None]] = {}
        #: For each tick: the function that the clock calls, and the interval.
        self._fires: dict[str, tuple[timedelta, Callable[[], None]]] = {}
        self._seen = self._timer.now()
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        while not is_cancelled():
            await self._round()
            await asyncio.sleep(self._lease.pause)

    async def stop(self) -> None:
        """Wait for running ticks, then give up the lead."""
        self._unschedule()
        while self._running:
            await asyncio.wait([*self._running.values()])
        if self._lease.held:
            with suppress(RelayError, TimeoutError):
                async with asyncio.timeout(TICK_TIMEOUT_S):
                    await self._report()
                    await self._lease.release()

    async def _round(self) -> None:
        self._look_at_the_clock()
        try:
            async with asyncio.timeout(TICK_TIMEOUT_S):
                lead = await self._lease.take()
                if self._leads and not self._lease.held:
                    await self._lose()
                if lead.term is not None:
                    await self._lead(lead.term, lead.requested)
            self._reported = None
        except (RelayError, TimeoutError) as error:
            self._say(error)
            if self._leads and not self._lease.held:
                await self._lose()
        except Exception:
            # Survive any error: without the next round the context would have no leader at all.
            _log.exception("the lease of %s could not be renewed or taken", self._context)

    async def _lead(self, term: int, requested: Mapping[str, datetime]) -> None:
        if not self._leads:
            await self._table.record(self._records(), all_of_them=True)
            self._last.clear()
            for tick in self._ticks.values():
                if tick.on_lead:
                    tick.on_lead()
            self._leads = True
            self._schedule()
            self._facts(LeadTaken(context=self._context, term=term))
        for name, requested_at in requested.items():
            await self._answer(name, requested_at)
        self._rounds += 1
        if requested or self._rounds % _REPORT_ROUNDS == 0:
            await self._report()

    async def _lose(self) -> None:
        self._leads = False
        self._unschedule()
        self._facts(LeadLost(context=self._context))
        await self._release()

    async def _answer(self, name: str, requested_at: datetime) -> None:
        if name in self._crons.jobs:
            await self._crons.run_now(name, requested_at)
        elif (tick := self._ticks.get(name)) is not None:
            if tick.on_request is not None:
                await tick.on_request()
            await self._tick(tick)
        await self._table.answer(name, requested_at)

    # --- the clock ---

    def _schedule(self) -> None:
        for tick in self._ticks.values():
            if tick.pace is not None:
                tick.pace.changed = partial(self._time, tick)
            self._time(tick)
            # The first tick comes with the lead, however seldom the clock calls it.
            self._timer.begin(*self._fires[tick.name])

    def _time(self, tick: Tick) -> None:
        """Make the clock call a tick at its present interval."""
        every = tick.every if tick.pace is None else tick.pace.every
        before, fire = self._fires.get(tick.name, (None, partial(self._fire, tick)))
        if before != every:
            if before is not None:
                self._timer.remove(before, fire)
            self._timer.add(every, fire)
            self._fires[tick.name] = every, fire

    def _unschedule(self) -> None:
        for every, fire in self._fires.values():
            self._timer.remove(every, fire)
        self._fires.clear()
        for tick in self._ticks.values():
            if tick.pace is not None:
                tick.pace.changed = None

    def _look_at_the_clock(self) -> None:
        """Count the intervals from now if the machine's clock was set back."""
        before, self._seen = self._seen, self._timer.now()
        if self._leads and self._seen < before:
            self._timer.begin_anew()

    def _fire(self, tick: Tick) -> None:
        """Begin a tick, unless the last one still runs."""
        if tick.name not in self._running:
            task = self._running[tick.name] = asyncio.create_task(self._scheduled(tick))
            task.add_done_callback(lambda _: self._running.pop(tick.name))

    async def _scheduled(self, tick: Tick) -> None:
        # After a pause of the process, late ticks run before the lease is checked; another may lead by now.
        if self._lease.held:
            await self._tick(tick)

    async def _tick(self, tick: Tick) -> None:
        # Without a limit, a tick that hangs on a silent server would block every later one.
        error = None
        try:
            async with asyncio.timeout(TICK_TIMEOUT_S):
                await tick.tick()
        except TimeoutError:
            error = f"gave up after {TICK_TIMEOUT_S:g} s"
            _log.warning("tick %s %s", tick.name, error)
        except (DatabaseUnreachable, SchemaMissing) as unreachable:
            error = str(unreachable)
            self._say(unreachable)
        except Exception as fault:
            error = f"{type(fault).__name__}: {fault}"
            _log.exception("tick %s failed", tick.name)
        self._last[tick.name] = self._timer.now(), error

    # --- records ---

    def _say(self, error: RelayError | TimeoutError) -> None:
        """Report an outage every time; report any other error once, for example a database without our tables."""
        if isinstance(error, DatabaseUnreachable | TimeoutError):
            self._facts(outage(self._context, error))
        elif self._reported != str(error):
            self._reported = str(error)
            _log.warning("context %s has no leader: %s", self._context, error)

    async def _report(self) -> None:
        await self._table.record(self._records())

    def _records(self) -> list[JobRecord]:
        now = self._timer.now()
        crons = [
            JobRecord(name, str(job.expression), next_run_at=self._crons.next_run(name, now))
            for name, job in self._crons.jobs.items()
        ]
        return [*map(self._record, self._ticks.values()), *crons]

    def _record(self, tick: Tick) -> JobRecord:
        last, error = self._last.get(tick.name, (None, None))
        every, _ = self._fires.get(tick.name, (None, None))
        following = None if every is None else self._timer.next(every)
        schedule = f"{EVERY}{tick.every.total_seconds():g} s"
        if tick.pace is not None and tick.pace.quiet > tick.every:
            schedule += f", quiet {tick.pace.quiet.total_seconds():g} s"
        return JobRecord(tick.name, schedule, last, following, error)
