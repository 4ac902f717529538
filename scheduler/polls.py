"""Questions to the database whether anything is due: at each tick, and at once after a hint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from relay import jobs
from relay.adapters.postgres.wakeup import EVENTS, Due, Wakeup
from relay.bootstrap import Application
from relay.domain.errors import DatabaseUnreachable
from relay.domain.facts import FactSink, OutageSeen
from relay.domain.ordering import Shard, shards_of
from scheduler.sender import Sender

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
