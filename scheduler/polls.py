"""Asks the database whether anything is due, at each tick and at once after a hint, and enqueues the jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from relay import jobs
from relay.adapters.dramatiq.broker import RelayBroker
from relay.adapters.postgres.wakeup import EVENTS, DueEvents, Wakeup
from relay.bootstrap import Application
from relay.commands.reconcile import EVERY as RECONCILE_EVERY
from relay.domain.errors import DatabaseUnreachable, Outage
from relay.domain.facts import FactSink, OutageSeen
from relay.domain.ordering import Shard, shards_of
from relay.domain.schedule import WaitingRun
from relay.jobs import Duty

#: The time limit of a tick, in seconds.
TICK_TIMEOUT_S: Final = 5.0
#: How late a tick may be before its duty counts as lost.
_LATE: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollLimits:
    """When polls are repeated, when hints are switched off, and when polls become seldom. Times in seconds.

    ``timeout``: of a poll after a hint. ``looks``, ``look_every``: how often that poll is repeated while a job is
    outstanding. ``left_to_workers``: how long a hint is left to a worker that hears it, too. ``load_events``,
    ``load_hints``: so many waiting events, or hints between two ticks, are a load.
    ``awake_for``: how long no hints are sent after a load. ``quiet_after``: without work for so long, polls become
    seldom. ``quiet_every``: their interval then.
    """

    timeout: float = TICK_TIMEOUT_S
    looks: int = 10
    look_every: float = 0.01
    left_to_workers: float = 0.02
    load_events: int = 100
    load_hints: int = 20
    awake_for: float = 1.0
    quiet_after: float = 5.0
    quiet_every: timedelta = timedelta(seconds=2)


POLL_LIMITS: Final = PollLimits()


class Sender:
    """Enqueues jobs. An outage of Redis is reported, not raised; a later tick tries again."""

    def __init__(self, application: Application, broker: RelayBroker) -> None:
        self._application = application
        self._broker = broker

    async def job(
        self, duty: Duty, *more: int, force: bool = False, every: timedelta | None = None, **hints: list[str]
    ) -> bool:
        """Enqueue a job unless its duty has an outstanding one; ``force`` replaces that one.

        ``every``: the interval of a duty whose job is sent again when it was lost.
        """
        try:
            token = await self._application.gates.open(
                duty.key,
                force=force,
                interval=timedelta() if every is None else every + _LATE,
                send=lambda token: self._broker.entry(duty.message(token, *more, **hints)),
            )
        except Outage as error:
            self._application.facts(OutageSeen(context=duty.context, server="redis", error=error.explanation))
            return False
        return token is not None

    async def some(self, duties: Sequence[Duty], *more: int, force: bool = False) -> bool:
        """Enqueue a job for each duty that has none outstanding; returns whether none had.

        One question for all contexts finds out which. ``force`` replaces outstanding jobs.
        """
        by_key = {duty.key: duty for duty in duties}
        free = duties if force else [by_key[key] for key in await self._application.gates.lost(list(by_key))]
        return all([await self.job(it, *more, force=force) for it in free]) and len(free) == len(duties)

    async def job_if(self, needed: Callable[[], Awaitable[bool]], duty: Duty) -> bool | None:
        """Enqueue a job if it is needed; returns whether an outstanding job will do it, None if not needed.

        So an idle context costs one query, and workers nothing. Raises DatabaseUnreachable.
        """
        return not await self.job(duty) if await needed() else None

    async def runs(self, context: str, runs: Sequence[WaitingRun]) -> None:
        """Enqueue runs of cron jobs. They need no gates, because each run has a row."""
        messages = [jobs.run_cron(context, run) for run in runs]
        try:
            if messages:
                await asyncio.to_thread(self._broker.enqueue_many, messages)
        except Outage as error:
            self._application.facts(OutageSeen(context=context, server="redis", error=error.explanation))

    async def all_routines(self, duty: Duty) -> None:
        """Make all routines of a duty due for its next job, also those that were done lately."""
        try:
            await self._application.gates.forget_rest(duty.key)
        except Outage as error:
            self._application.facts(OutageSeen(context=duty.context, server="redis", error=error.explanation))

    async def audit(self, duty: Duty) -> bool:
        """Enqueue an audit. The clock decides which page it reads, so no process has to remember it."""
        page = int(time.time() / RECONCILE_EVERY.total_seconds())
        return await self.job(duty, page, every=RECONCILE_EVERY)


class Pace:
    """The interval of a tick: as configured, or longer while all is quiet."""

    def __init__(self, often: timedelta, quiet: timedelta = POLL_LIMITS.quiet_every) -> None:
        self._often, self.quiet = often, max(often, quiet)
        self.every = often
        #: Called when that changes.
        self.changed: Callable[[], None] | None = None

    def set(self, *, quiet: bool) -> None:
        """Note whether all is quiet."""
        every = self.quiet if quiet else self._often
        if every != self.every:
            self.every = every
            if self.changed is not None:
                self.changed()


class Hints:
    """A hint says that a producer has committed something that is due now. So this polls before the next tick.

    Polls at each tick, and at once after each hint. Hints that arrive during a poll share the next poll.

    ``poll`` returns True if a job that already runs should do the work, None if nothing is due. That job may have
    looked before the row came, and may be about to end. So after a hint the poll is repeated for a moment.

    When nothing has been due for some seconds and hints are sent, the ticks become seldom (``pace``). What comes
    without a hint then waits a little longer: a retry that is due, a row whose transaction began long ago.
    """

    def __init__(
        self,
        context: str,
        wakeup: Wakeup,
        kind: str,
        poll: Callable[[], Awaitable[bool | None]],
        facts: FactSink,
        pace: Pace,
        limits: PollLimits,
        heard: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """``heard``: whether a worker hears the hints, too, and does the work without a job."""
        self._context, self._wakeup, self._kind, self._poll, self._facts = context, wakeup, kind, poll, facts
        self._heard = heard
        self.pace, self._limits = pace, limits
        self._quiet_from = 0.0
        #: How many hints came since the last tick.
        self.count = 0
        self._hinted = False
        self._hearing: asyncio.Task[None] | None = None

    async def tick(self) -> None:
        """Poll once, and listen for hints from now on. Raises DatabaseUnreachable."""
        self._wakeup.listen(self._kind, self._hint)
        await self._look()
        self.count = 0

    async def _look(self) -> bool:
        """Poll, and note whether all is quiet. Raises DatabaseUnreachable."""
        left: bool | None = True
        hinted = False
        try:
            left = await self._poll()
            hinted = self._wakeup.hinted
        finally:
            now = asyncio.get_running_loop().time()
            if left is not None:
                self._quiet_from = now + self._limits.quiet_after
            self.pace.set(quiet=hinted and now >= self._quiet_from)
        return bool(left)

    def _hint(self) -> None:
        self.count += 1
        self._hinted = True
        if self._hearing is None or self._hearing.done():
            self._hearing = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        while self._hinted:
            if self._heard is not None and await self._heard():
                await asyncio.sleep(self._limits.left_to_workers)
            self._hinted = False
            for _ in range(self._limits.looks):
                if not await self._poll_in_time():
                    break
                await asyncio.sleep(self._limits.look_every)

    async def _poll_in_time(self) -> bool:
        """Poll within the time limit of a tick. Otherwise a poll that hangs would block the polls of ticks."""
        try:
            async with asyncio.timeout(self._limits.timeout):
                return await self._look()
        except (DatabaseUnreachable, TimeoutError) as error:
            self._facts(outage(self._context, error))
            return False


class PublishTick:
    """Asks the database whether anything is due; if so, sends a job to each shard concerned.

    The tick is the guarantee. Producers send a hint while the outbox sleeps, and the hint polls at once.
    Under load the outbox is awake: polling is enough, and no transaction pays for a hint.
    """

    def __init__(self, application: Application, context: str, send: Sender, limits: PollLimits) -> None:
        self._context = application.context(context)
        self._send, self._members, self._limits = send, application.members, limits
        self.pace = Pace(self._context.settings.publish.poll_interval, limits.quiet_every)
        wakeup, facts = self._context.wakeup, application.facts
        heard = partial(application.members.listening, context)
        self._hints = Hints(context, wakeup, EVENTS, self._poll, facts, self.pace, limits, heard)
        self._awake_until = 0.0
        self._lost = False
        self._running = asyncio.Lock()

    async def tick(self) -> None:
        """Poll once. Raises DatabaseUnreachable."""
        await self._hints.tick()

    def take_over(self) -> None:
        """Force the next jobs: a job of the former leader may be in a long back-off."""
        self._lost = True

    async def _poll(self) -> bool | None:
        """Send jobs if anything is due; returns whether outstanding jobs will do it, None if nothing is due."""
        async with self._running:
            try:
                due = await self._context.wakeup.due(self._limits.load_events)
                await self._context.wakeup.set_sleeping(self._may_sleep(due))
            except (DatabaseUnreachable, asyncio.CancelledError):
                # When the tick times out, it is cancelled: a silent database counts as an outage too.
                self._lost = True
                raise
            return not await self._publish(due) if due.count > 0 else None

    def _may_sleep(self, due: DueEvents) -> bool:
        """Return whether the outbox may sleep. Many events or hints at once keep it awake for a second."""
        now = asyncio.get_running_loop().time()
        if due.count >= self._limits.load_events or self._hints.count > self._limits.load_hints:
            self._awake_until = now + self._limits.awake_for
        return now >= self._awake_until

    async def _publish(self, due: DueEvents) -> bool:
        # After an outage of the database the outstanding job may be in a back-off.
        force, self._lost = self._lost, False
        name, count = self._context.name, self._context.settings.publish.shards
        loaded = due.count >= self._limits.load_events
        many = shards_of(count, await self._members.publishing()) if loaded else count
        if many != count:
            return await self._send.some([jobs.PUBLISH.of(name, n) for n in range(many)], many, force=force)
        # Not all of many events were counted. A forced job must cover everything that the lost job had.
        shards = [n for n in range(count) if force or loaded or due.concerns(Shard(n, count))]
        sent = await asyncio.gather(
            *(self._send.job(jobs.PUBLISH.of(name, shard), force=force) for shard in shards)
        )
        return all(sent)


def outage(context: str, error: DatabaseUnreachable | TimeoutError) -> OutageSeen:
    """Return the fact that the database of a context is unreachable or silent."""
    text = f"no answer within {TICK_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else error.explanation
    return OutageSeen(context=context, server="postgresql", error=text)
