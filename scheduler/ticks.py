"""The built-in jobs, as a table. A tick may run twice or be missed without harm.

A tick enqueues a job for the fleet and does no work itself. Its gate admits one outstanding job per duty, so
that jobs do not pile up while no worker is free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from relay import jobs
from relay.adapters.gate import Gates
from relay.adapters.postgres.wakeup import EVENTS, TASKS, Due, Wakeup
from relay.adapters.redis import RelayBroker
from relay.bootstrap import Application
from relay.commands.reconcile import EVERY as RECONCILE_EVERY
from relay.domain.errors import DatabaseUnreachable, Outage
from relay.domain.facts import FactSink, OutageSeen
from relay.domain.ordering import Shard
from relay.domain.schedule import WaitingRun
from relay.jobs import Duty
from scheduler.samples import sample_backlogs, sample_lag

#: The time limit of a tick, in seconds.
TICK_TIMEOUT_S: Final = 5.0
#: How many times to look again while a job is outstanding, and the seconds in between.
_MAX_LOOKS: Final = 10
_LOOK_INTERVAL_S: Final = 0.01

_PULL: Final = timedelta(milliseconds=500)
_DELIVER: Final = timedelta(milliseconds=250)
_SWEEP: Final = timedelta(seconds=1)
_RECOVER: Final = timedelta(seconds=3)
_RESCUE: Final = timedelta(seconds=10)
_RECORD: Final = timedelta(seconds=2)
_PRUNE: Final = timedelta(hours=1)
_ARCHIVE: Final = timedelta(hours=1)
#: How often to look for duties whose job was lost.
_LOOK: Final = timedelta(seconds=2)
#: How late a tick may be before its duty counts as lost.
_LATE: Final = timedelta(seconds=5)
#: From so many waiting events, or hints between two ticks, the outbox is under load and hints do not help.
_LOAD_EVENTS: Final = 100
_LOAD_HINTS: Final = 20
#: How long the outbox then stays awake, in seconds.
_POLLING_S: Final = 1.0
#: The module whose actors run background tasks. A fleet without it uses `python -m tasks` or has no tasks.
_TASKS: Final = "tasks.actors"


@dataclass(frozen=True, slots=True)
class Tick:
    """One row of the table: what runs, how often, under which name.

    ``on_lead`` is called when this process takes the lead.
    """

    name: str
    every: timedelta
    tick: Callable[[], Awaitable[object]]
    on_lead: Callable[[], None] | None = None


def ticks(application: Application, broker: RelayBroker, context: str) -> Iterator[Tick]:
    """Yield all built-in jobs of a context."""
    send = Sender(application, broker)
    yield from _frequent(application, send, context)
    seldom = list(_seldom(application, send, context))
    yield from seldom
    duties = {tick.name: tick.tick for tick in seldom}
    yield Tick(f"resend:{context}", _LOOK, partial(_resend, application.gates, duties))


def _frequent(application: Application, send: Sender, context: str) -> Iterator[Tick]:
    """Yield the frequent ticks: if a job is lost, the next one follows soon."""
    settings = application.context(context).settings
    publish = PublishTick(application, context, send)
    yield Tick(f"publish:{context}", settings.publish.poll_interval, publish.tick, publish.take_over)
    if _TASKS in application.settings.actor_modules:
        yield from _tasks(application, send, context)
    if application.settings.metrics.scheduler is not None:
        interval = application.settings.metrics.interval
        yield Tick(f"metrics:{context}", interval, partial(sample_backlogs, application, context))
        yield Tick(f"lag:{context}", interval, partial(sample_lag, application, context))
    if settings.subscriptions:
        record = jobs.RECORD_DEAD_LETTERS.of(context)
        yield Tick(record.key, _RECORD, partial(send.job, record))
    for name in settings.subscriptions:
        pull, sweep = jobs.PULL.of(context, name), jobs.SWEEP_INBOX.of(context, name)
        left_open = partial(application.context(context).wakeup.inbox_open, name)
        yield Tick(pull.key, _PULL, partial(send.job, pull))
        yield Tick(sweep.key, _SWEEP, partial(send.job_if, left_open, sweep))


def _tasks(application: Application, send: Sender, context: str) -> Iterator[Tick]:
    """Yield the ticks of background tasks: deliver due ones to Redis, and again those that Redis lost."""
    wakeup = application.context(context).wakeup
    deliver, sweep = jobs.DELIVER_TASKS.of(context), jobs.SWEEP_TASKS.of(context)
    poll = partial(send.job_if, wakeup.tasks_due, deliver)
    yield Tick(deliver.key, _DELIVER, Hints(context, wakeup, TASKS, poll, application.facts).tick)
    yield Tick(sweep.key, _SWEEP, partial(send.job_if, wakeup.tasks_overdue, sweep))


def _seldom(application: Application, send: Sender, context: str) -> Iterator[Tick]:
    """Yield the rare ticks: if a job is lost, it is sent again. Their names are the names of their gates."""
    settings = application.context(context).settings

    def row(duty: Duty, every: timedelta) -> Tick:
        return Tick(duty.key, every, partial(send.job, duty, every=every))

    def audit(duty: Duty) -> Tick:
        return Tick(duty.key, RECONCILE_EVERY, partial(send.audit, duty))

    yield audit(jobs.RECONCILE_STREAM.of(context))
    yield row(jobs.PRUNE.of(context), _PRUNE)
    if settings.archive.after is not None:
        yield row(jobs.ARCHIVE.of(context), _ARCHIVE)
    for name, subscription in settings.subscriptions.items():
        yield audit(jobs.RECONCILE_INBOX.of(context, name))
        yield row(jobs.RECOVER_DELIVERIES.of(context, name), _RECOVER)
        yield row(jobs.RESCUE_EXHAUSTED.of(context, name), _RESCUE)
        yield row(jobs.KEEP_IN_PROGRESS.of(context, name), subscription.ack_wait / 4)


async def _resend(gates: Gates, duties: Mapping[str, Callable[[], Awaitable[object]]]) -> None:
    """Send jobs again that were lost because a worker died or Redis lost its data."""
    for duty in await gates.lost(list(duties)):
        await duties[duty]()


class Sender:
    """Enqueues jobs. An outage of Redis is reported, not raised; a later tick tries again."""

    def __init__(self, application: Application, broker: RelayBroker) -> None:
        self._application = application
        self._broker = broker

    async def job(self, duty: Duty, *more: int, force: bool = False, every: timedelta | None = None) -> bool:
        """Enqueue a job unless its duty has an outstanding one; ``force`` replaces that one.

        ``every``: the interval of a duty whose job is sent again when it was lost.
        """
        try:
            token = await self._application.gates.open(
                duty.key,
                force=force,
                interval=timedelta() if every is None else every + _LATE,
                send=lambda token: self._broker.entry(duty.message(token, *more)),
            )
        except Outage as error:
            self._application.facts(OutageSeen(context=duty.context, server="redis", error=error.message))
            return False
        return token is not None

    async def job_if(self, needed: Callable[[], Awaitable[bool]], duty: Duty) -> bool:
        """Enqueue a job if it is needed; returns whether that is left to an outstanding job.

        So an idle context costs one query, and workers nothing. Raises DatabaseUnreachable.
        """
        return await needed() and not await self.job(duty)

    async def runs(self, context: str, runs: Sequence[WaitingRun]) -> None:
        """Enqueue runs of cron jobs. They need no gates, because each run has a row."""
        messages = [jobs.run_cron(context, run) for run in runs]
        try:
            if messages:
                await asyncio.to_thread(self._broker.enqueue_many, messages)
        except Outage as error:
            self._application.facts(OutageSeen(context=context, server="redis", error=error.message))

    async def audit(self, duty: Duty) -> bool:
        """Enqueue an audit. The clock decides which page it reads, so no process has to remember it."""
        page = int(time.time() / RECONCILE_EVERY.total_seconds())
        return await self.job(duty, page, every=RECONCILE_EVERY)


class PublishTick:
    """Asks the database whether anything is due; if so, sends a job to each shard concerned.

    The tick is the guarantee. Producers send a hint while the outbox sleeps, and the hint polls at once.
    Under load the outbox is awake. Then no transaction pays for a hint, and polling is enough.
    """

    def __init__(self, application: Application, context: str, send: Sender) -> None:
        self._parts = application.context(context)
        self._send = send
        self._hints = Hints(context, self._parts.wakeup, EVENTS, self._poll, application.facts)
        self._awake_until = 0.0
        self._lost = False
        self._running = asyncio.Lock()

    async def tick(self) -> None:
        """Poll once. Raises DatabaseUnreachable."""
        await self._hints.tick()

    def take_over(self) -> None:
        """Force the next jobs: a job that the former leader enqueued may sit in a long back-off."""
        self._lost = True

    async def _poll(self) -> bool:
        """Send jobs if anything is due; returns whether it is left to outstanding jobs."""
        async with self._running:
            try:
                due = await self._parts.wakeup.due(_LOAD_EVENTS)
                await self._parts.wakeup.set_sleeping(self._may_sleep(due))
            except (DatabaseUnreachable, asyncio.CancelledError):
                # When the tick times out, it is cancelled: a silent database counts as an outage too.
                self._lost = True
                raise
            return due.count > 0 and not await self._publish(due)

    def _may_sleep(self, due: Due) -> bool:
        """Tell whether the outbox may sleep. Many events or hints at once keep it awake for a second."""
        now = asyncio.get_running_loop().time()
        if due.count >= _LOAD_EVENTS or self._hints.count > _LOAD_HINTS:
            self._awake_until = now + _POLLING_S
        return now >= self._awake_until

    async def _publish(self, due: Due) -> bool:
        # After an outage of the database the outstanding job may sit in a back-off.
        force, self._lost = self._lost, False
        name, count = self._parts.name, self._parts.settings.publish.shards
        # With many events not all were counted, and a forced job must cover all that the lost one held.
        everywhere = force or due.count >= _LOAD_EVENTS
        shards = [n for n in range(count) if everywhere or due.concerns(Shard(n, count))]
        sent = await asyncio.gather(
            *(self._send.job(jobs.PUBLISH.of(name, shard), force=force) for shard in shards)
        )
        return all(sent)


# --- sooner than a tick ---


class Hints:
    """Hints: a producer has committed something that is due now, so it is polled for before the next tick.

    Polls at each tick, and at once after each hint. Hints that arrive during a poll share the next poll.

    ``poll`` returns whether something is due but left to an outstanding job. That job may be about to end and may
    have looked before the new rows came. So after a hint the poll is repeated, until about the next tick.
    """

    def __init__(
        self, context: str, wakeup: Wakeup, kind: str, poll: Callable[[], Awaitable[bool]], facts: FactSink
    ) -> None:
        self._context, self._wakeup, self._kind, self._poll, self._facts = context, wakeup, kind, poll, facts
        #: How many hints came since the last tick.
        self.count = 0
        self._hinted = False
        self._hearing: asyncio.Task[None] | None = None

    async def tick(self) -> None:
        """Poll once, and listen for hints from now on. Raises DatabaseUnreachable."""
        self._wakeup.listen(self._kind, self._hint)
        await self._poll()
        self.count = 0

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
        """Poll within the time limit of a tick. Otherwise a poll that hangs would block the ticks' own polls."""
        try:
            async with asyncio.timeout(TICK_TIMEOUT_S):
                return await self._poll()
        except (DatabaseUnreachable, TimeoutError) as error:
            self._facts(outage(self._context, error))
            return False


def outage(context: str, error: DatabaseUnreachable | TimeoutError) -> OutageSeen:
    """Return the fact that the database of a context is unreachable or silent."""
    text = f"no answer within {TICK_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else error.message
    return OutageSeen(context=context, server="postgresql", error=text)
