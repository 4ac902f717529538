"""Asks the database whether anything is due, at each tick and at once after a hint, and enqueues the jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from relay import jobs
from relay.adapters.dramatiq.broker import RelayBroker
from relay.adapters.postgres.wakeup import EVENTS, Due, Wakeup
from relay.bootstrap import Application
from relay.commands.reconcile import EVERY as RECONCILE_EVERY
from relay.domain.errors import DatabaseUnreachable, Outage
from relay.domain.facts import FactSink, OutageSeen
from relay.domain.ordering import Shard, shards_of
from relay.domain.schedule import WaitingRun
from relay.jobs import Duty

#: The time limit of a tick, in seconds.
TICK_TIMEOUT_S: Final = 5.0
#: How many times to look again while a job is outstanding, and the seconds in between.
_MAX_LOOKS: Final = 10
_LOOK_INTERVAL_S: Final = 0.01
#: From so many waiting events, or hints between two ticks, the outbox is under load and hints do not help.
_LOAD_EVENTS: Final = 100
_LOAD_HINTS: Final = 20
#: How long the outbox then stays awake, in seconds.
_POLLING_S: Final = 1.0
#: How long nothing must have been due, in seconds, before polls become seldom, and how seldom they are.
_QUIET_AFTER_S: Final = 5.0
_QUIET: Final = timedelta(seconds=2)
#: How late a tick may be before its duty counts as lost.
_LATE: Final = timedelta(seconds=5)


class Sender:
    """Enqueues jobs. An outage of Redis is reported, not raised; a later tick tries again."""

    def __init__(self, application: Application, broker: RelayBroker) -> None:
        self._application = application
        self._broker = broker

    async def job(
        self, duty: Duty, *more: int, force: bool = False, every: timedelta | None = None, **known: list[str]
    ) -> bool:
        """Enqueue a job unless its duty has an outstanding one; ``force`` replaces that one.

        ``every``: the interval of a duty whose job is sent again when it was lost.
        """
        try:
            token = await self._application.gates.open(
                duty.key,
                force=force,
                interval=timedelta() if every is None else every + _LATE,
                send=lambda token: self._broker.entry(duty.message(token, *more, **known)),
            )
        except Outage as error:
            self._application.facts(OutageSeen(context=duty.context, server="redis", error=error.told))
            return False
        return token is not None

    async def some(self, duties: Sequence[Duty], *more: int, force: bool = False) -> bool:
        """Enqueue a job for each duty that has none outstanding; returns whether none had.

        One question finds out which. ``force`` replaces outstanding jobs.
        """
        found = {duty.key: duty for duty in duties}
        wanted = duties if force else [found[key] for key in await self._application.gates.lost(list(found))]
        return all([await self.job(it, *more, force=force) for it in wanted]) and len(wanted) == len(duties)

    async def job_if(self, needed: Callable[[], Awaitable[bool]], duty: Duty) -> bool | None:
        """Enqueue a job if it is needed; returns whether an outstanding job will do it, None if not needed.

        So an idle context costs one query, and workers nothing. Raises DatabaseUnreachable.
        """
        return not await self.job(duty) if await needed() else None

    async def absent(self, duties: Mapping[str, Duty]) -> None:
        """Enqueue a job of each duty that has none outstanding. One question for all contexts finds out which."""
        for key in await self._application.gates.lost(list(duties)):
            await self.job(duties[key])

    async def runs(self, context: str, runs: Sequence[WaitingRun]) -> None:
        """Enqueue runs of cron jobs. They need no gates, because each run has a row."""
        messages = [jobs.run_cron(context, run) for run in runs]
        try:
            if messages:
                await asyncio.to_thread(self._broker.enqueue_many, messages)
        except Outage as error:
            self._application.facts(OutageSeen(context=context, server="redis", error=error.told))

    async def all_parts(self, duty: Duty) -> None:
        """Make all parts of a duty due for its next job, also those that were done lately."""
        try:
            await self._application.gates.forget_rest(duty.key)
        except Outage as error:
            self._application.facts(OutageSeen(context=duty.context, server="redis", error=error.told))

    async def audit(self, duty: Duty) -> bool:
        """Enqueue an audit. The clock decides which page it reads, so no process has to remember it."""
        page = int(time.time() / RECONCILE_EVERY.total_seconds())
        return await self.job(duty, page, every=RECONCILE_EVERY)


class Pace:
    """The interval of a tick: as configured, or longer while all is quiet."""

    def __init__(self, often: timedelta, quiet: timedelta = _QUIET) -> None:
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

    ``poll`` returns whether something is due and left to an outstanding job. That job may be about to end and may
    have looked before the new rows came. So after a hint the poll is repeated, until about the next tick.

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
    ) -> None:
        self._context, self._wakeup, self._kind, self._poll, self._facts = context, wakeup, kind, poll, facts
        self.pace = pace
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
                self._quiet_from = now + _QUIET_AFTER_S
            self.pace.set(quiet=hinted and now >= self._quiet_from)
        return bool(left)

    def _hint(self) -> None:
        self.count += 1
        self._hinted = True
        if self._hearing is None or self._hearing.done():
            self._hearing = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        while self._hinted:
            self._hinted = False
            for _ in range(_MAX_LOOKS):
                if not await self._poll_in_time():
                    break
                await asyncio.sleep(_LOOK_INTERVAL_S)

    async def _poll_in_time(self) -> bool:
        """Poll within the time limit of a tick. Otherwise a poll that hangs would block the polls of ticks."""
        try:
            async with asyncio.timeout(TICK_TIMEOUT_S):
                return await self._look()
        except (DatabaseUnreachable, TimeoutError) as error:
            self._facts(outage(self._context, error))
            return False


class PublishTick:
    """Asks the database whether anything is due; if so, sends a job to each shard concerned.

    The tick is the guarantee. Producers send a hint while the outbox sleeps, and the hint polls at once.
    Under load the outbox is awake: polling is enough, and no transaction pays for a hint.
    """

    def __init__(self, application: Application, context: str, send: Sender) -> None:
        self._parts = application.context(context)
        self._send, self._members = send, application.members
        self.pace = Pace(self._parts.settings.publish.poll_interval)
        self._hints = Hints(context, self._parts.wakeup, EVENTS, self._poll, application.facts, self.pace)
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
                due = await self._parts.wakeup.due(_LOAD_EVENTS)
                await self._parts.wakeup.set_sleeping(self._may_sleep(due))
            except (DatabaseUnreachable, asyncio.CancelledError):
                # When the tick times out, it is cancelled: a silent database counts as an outage too.
                self._lost = True
                raise
            return not await self._publish(due) if due.count > 0 else None

    def _may_sleep(self, due: Due) -> bool:
        """Return whether the outbox may sleep. Many events or hints at once keep it awake for a second."""
        now = asyncio.get_running_loop().time()
        if due.count >= _LOAD_EVENTS or self._hints.count > _LOAD_HINTS:
            self._awake_until = now + _POLLING_S
        return now >= self._awake_until

    async def _publish(self, due: Due) -> bool:
        # After an outage of the database the outstanding job may be in a back-off.
        force, self._lost = self._lost, False
        name, count = self._parts.name, self._parts.settings.publish.shards
        if due.count >= _LOAD_EVENTS and (many := shards_of(count, await self._members.publishing())) != count:
            return await self._send.some([jobs.PUBLISH.of(name, n) for n in range(many)], many, force=force)
        # Not all of many events were counted. A forced job must cover everything that the lost job had.
        everywhere = force or due.count >= _LOAD_EVENTS
        shards = [n for n in range(count) if everywhere or due.concerns(Shard(n, count))]
        sent = await asyncio.gather(
            *(self._send.job(jobs.PUBLISH.of(name, shard), force=force) for shard in shards)
        )
        return all(sent)


def outage(context: str, error: DatabaseUnreachable | TimeoutError) -> OutageSeen:
    """Return the fact that the database of a context is unreachable or silent."""
    text = f"no answer within {TICK_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else error.told
    return OutageSeen(context=context, server="postgresql", error=text)
