"""The built-in jobs, as a table. A tick may run twice or be missed without harm.

A tick enqueues a job for the fleet and does no work itself. Its gate admits one outstanding job per duty, so
that jobs do not pile up while no worker is free.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final

from relay import jobs
from relay.adapters.dramatiq.broker import RelayBroker
from relay.adapters.dramatiq.gates import Gates
from relay.adapters.postgres.wakeup import TASKS
from relay.bootstrap import Application, duties
from relay.commands.reconcile import EVERY as RECONCILE_EVERY
from relay.jobs import Duty
from scheduler import alerts, brake, history
from scheduler.polls import POLL_LIMITS, Hints, Pace, PollLimits, PublishTick, Sender
from scheduler.samples import sample_backlogs, sample_lag

_PULL: Final = timedelta(milliseconds=500)
_DELIVER: Final = timedelta(milliseconds=250)
_SWEEP: Final = timedelta(seconds=2)
_PRUNE: Final = timedelta(hours=1)
_ARCHIVE: Final = timedelta(hours=1)
#: How often to check for duties whose job was lost.
_LOOK: Final = timedelta(seconds=2)
#: How often to check for gates that would never expire.
_MEND: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Tick:
    """One row of the table: what runs, how often, under which name.

    ``on_lead`` is called when this process takes the lead, ``on_request`` before an operator's run out of turn.
    ``pace``: the changing interval of a tick that may be called less often.
    """

    name: str
    every: timedelta
    tick: Callable[[], Awaitable[object]]
    on_lead: Callable[[], None] | None = None
    on_request: Callable[[], Awaitable[object]] | None = None
    pace: Pace | None = None


def ticks(
    application: Application,
    broker: RelayBroker,
    context: str,
    limits: PollLimits = POLL_LIMITS,
    brake_times: brake.BrakeTimes = brake.BRAKE_TIMES,
) -> Iterator[Tick]:
    """Yield all built-in jobs of a context."""
    send = Sender(application, broker)
    yield from _frequent(application, send, context, limits, brake_times)
    resend = Resend(application.gates)
    for tick in _seldom(application, send, context):
        yield replace(tick, tick=resend.noting(tick.name, tick.tick))
    yield Tick(f"resend:{context}", _LOOK, resend.tick, on_lead=resend.sent.clear)
    gates = [duty.key for duty in duties(application.context(context).settings)]
    yield Tick(f"mend:{context}", _MEND, partial(application.gates.mend, gates))


def _frequent(
    application: Application, send: Sender, context: str, limits: PollLimits, brake_times: brake.BrakeTimes
) -> Iterator[Tick]:
    """Yield the frequent ticks: if a job is lost, the next one follows soon."""
    settings = application.context(context).settings
    publish = PublishTick(application, context, send, limits)
    interval = settings.publish.poll_interval
    yield Tick(f"publish:{context}", interval, publish.tick, publish.take_over, pace=publish.pace)
    if settings.backpressure.limits().any:
        writer = application.context(context).wakeup.brake
        check = brake.BrakeTick(settings, writer, application.facts, brake_times)
        yield Tick(f"brake:{context}", brake.EVERY, check.tick, check.take_over)
    yield from _tasks(application, send, context, limits)
    sender, conditions = alerts.sender_and_conditions(application, context)
    yield Tick(f"alerts:{context}", alerts.EVERY, sender.run)
    yield Tick(f"conditions:{context}", settings.alerts.check_every, conditions.tick)
    parts = application.context(context)
    records = history.HistoryTick(parts.history, parts.backlogs.levels, application.members.releases)
    yield Tick(f"history:{context}", history.EVERY, records.tick, records.take_over)
    if application.settings.metrics.scheduler is not None:
        interval = application.settings.metrics.interval
        yield Tick(f"metrics:{context}", interval, partial(sample_backlogs, application, context))
        yield Tick(f"lag:{context}", interval, partial(sample_lag, application, context))
    if settings.subscriptions:
        pulls = [jobs.PULL.of(context, name) for name in settings.subscriptions]
        yield Tick(f"pull:{context}", _PULL, partial(send.some, pulls))


def _tasks(application: Application, send: Sender, context: str, limits: PollLimits) -> Iterator[Tick]:
    """Yield the ticks of background tasks: deliver due ones to Redis, and again those that Redis lost."""
    wakeup = application.context(context).wakeup
    deliver, sweep = jobs.DELIVER_TASKS.of(context), jobs.SWEEP_TASKS.of(context)
    poll = partial(send.job_if, wakeup.tasks_due, deliver)
    pace = Pace(_DELIVER, limits.quiet_every)
    hints = Hints(context, wakeup, TASKS, poll, application.facts, pace, limits)
    yield Tick(deliver.key, _DELIVER, hints.tick, pace=pace)
    yield Tick(sweep.key, _SWEEP, partial(send.job_if, wakeup.tasks_overdue, sweep))


def _seldom(application: Application, send: Sender, context: str) -> Iterator[Tick]:
    """Yield the rare ticks: if a job is lost, it is sent again. Their names are the names of their gates."""
    settings = application.context(context).settings

    def row(duty: Duty, every: timedelta) -> Tick:
        return Tick(duty.key, every, partial(send.job, duty, every=every))

    audit = jobs.RECONCILE_STREAM.of(context)
    yield Tick(audit.key, RECONCILE_EVERY, partial(send.audit, audit))
    yield row(jobs.PRUNE.of(context), _PRUNE)
    if settings.archive.after is not None:
        yield row(jobs.ARCHIVE.of(context), _ARCHIVE)
    if settings.subscriptions:
        yield _look_after(application, send, context)


def _look_after(application: Application, send: Sender, context: str) -> Tick:
    """The tick of a context's upkeep. It is less frequent while no subscription has unfinished messages.

    What a dead worker had received, and not stored, is then found a little later, and still in time. The job
    carries which subscriptions have unfinished messages. So workers ask an idle database nothing.
    """
    settings, wakeup = application.context(context).settings, application.context(context).wakeup
    duty, pace = jobs.LOOK_AFTER.of(context), Pace(settings.look_after_every, settings.look_after_quiet)

    async def tick() -> None:
        unfinished = await wakeup.unfinished(list(settings.subscriptions))
        pace.set(quiet=not unfinished)
        await send.job(duty, every=pace.quiet, unfinished=list(unfinished))

    return Tick(duty.key, settings.look_after_every, tick, on_request=partial(send.all_routines, duty), pace=pace)


class Resend:
    """Sends jobs again that were lost because a worker died or Redis lost its data.

    It knows only what this process has ``sent`` since it leads. So after a new lead nothing is sent twice at once.
    """

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self.sent: dict[str, Callable[[], Awaitable[object]]] = {}

    def noting(self, name: str, send: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
        """Return ``send``, which is then noted as sent."""

        async def noted() -> None:
            self.sent[name] = send
            await send()

        return noted

    async def tick(self) -> None:
        """Look once."""
        if self.sent:
            for name in await self._gates.lost(list(self.sent)):
                await self.sent[name]()
