"""The built-in jobs, as a table. Every tick is harmless when it runs twice or not at all.

A tick enqueues a job for the fleet and does no work itself. Its gate keeps jobs of one duty from
piling up behind each other while no worker is free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from relay.adapters.postgres.reads import PostgresBacklogReader
from relay.adapters.postgres.wakeup import EVENTS, Due
from relay.adapters.redis import RelayBroker
from relay.bootstrap import (
    ARCHIVE_QUEUE,
    CRON_QUEUE,
    PUBLISH_QUEUE,
    PULL_QUEUE,
    UPKEEP_QUEUE,
    Application,
    job,
)
from relay.domain.errors import DatabaseUnreachable, Outage
from relay.domain.facts import OutageSeen
from relay.domain.ordering import Shard
from relay.domain.schedule import WaitingRun
from relay.queries import BacklogsSampled
from scheduler.hints import Hints
from scheduler.task_ticks import task_ticks

_PULL: Final = timedelta(milliseconds=500)
_SWEEP: Final = timedelta(seconds=1)
_UPKEEP: Final = {
    "recover_deliveries": timedelta(seconds=3),
    "rescue_exhausted": timedelta(seconds=10),
}
_RECORD: Final = timedelta(seconds=2)
_RECONCILE: Final = timedelta(seconds=30)
_PRUNE: Final = timedelta(hours=1)
_ARCHIVE: Final = timedelta(hours=1)
#: From so many events waiting, or hints between two ticks, the outbox is under load and hints are no use.
_MANY: Final = 100
_MANY_HINTS: Final = 20
#: How long it then stays awake, in seconds.
_AWAKE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """One row of the table: what runs, how often, under which name.

    ``on_lead`` is called when this process takes the lead: another has led until now. ``clocked``: ticks by
    APScheduler's clock however often, for what everything rests on.
    """

    name: str
    every: timedelta
    tick: Callable[[], Awaitable[object]]
    on_lead: Callable[[], None] | None = None
    clocked: bool = False


def jobs(application: Application, broker: RelayBroker, context: str) -> Iterator[Job]:
    """All built-in jobs of a context."""
    settings, send = application.context(context).settings, Sender(application, broker)
    publish = PublishTick(application, context, send)
    yield Job(f"publish:{context}", settings.publish.poll_interval, publish.tick, publish.take_over, clocked=True)
    duty = f"reconcile_stream:{context}"
    yield Job(duty, _RECONCILE, partial(send.turn, duty, "reconcile_stream", context))
    duty = f"prune:{context}"
    yield Job(duty, _PRUNE, partial(send.job, duty, UPKEEP_QUEUE, "prune", context))
    if settings.archive.after is not None:
        duty = f"archive:{context}"
        yield Job(duty, _ARCHIVE, partial(send.job, duty, ARCHIVE_QUEUE, "archive", context))
    for tick in task_ticks(application, send.job, context):
        yield Job(*tick)
    if application.settings.metrics.scheduler is not None:
        sample = partial(_sample, application, context)
        yield Job(f"metrics:{context}", application.settings.metrics.interval, sample)
    if settings.subscriptions:
        duty = f"record_dead_letters:{context}"
        record = partial(send.job, duty, UPKEEP_QUEUE, "record_dead_letters", context)
        yield Job(duty, _RECORD, record)
    for name, subscription in settings.subscriptions.items():
        pull = partial(send.job, f"pull:{context}:{name}", PULL_QUEUE, "pull_messages", context, name)
        yield Job(f"pull:{context}:{name}", _PULL, pull)
        duty = f"reconcile_inbox:{context}:{name}"
        yield Job(duty, _RECONCILE, partial(send.turn, duty, "reconcile_inbox", context, name))
        yield Job(f"sweep_inbox:{context}:{name}", _SWEEP, partial(_sweep, application, send, context, name))
        upkeep = {**_UPKEEP, "keep_in_progress": subscription.ack_wait / 4}
        for actor, every in upkeep.items():
            duty = f"{actor}:{context}:{name}"
            yield Job(duty, every, partial(send.job, duty, UPKEEP_QUEUE, actor, context, name))


async def _sample(application: Application, context: str) -> None:
    """Count what waits, for the metrics. Raises DatabaseUnreachable and SchemaMissing."""
    backlogs = await PostgresBacklogReader(application.context(context).pool).backlogs()
    application.facts(BacklogsSampled(context=context, backlogs=backlogs))


async def _sweep(application: Application, send: Sender, context: str, subscription: str) -> None:
    """Send a sweep if there is anything in the inbox that it could find. Raises DatabaseUnreachable."""
    if await application.context(context).wakeup.inbox_open(subscription):
        duty = f"sweep_inbox:{context}:{subscription}"
        await send.job(duty, UPKEEP_QUEUE, "sweep_inbox", context, subscription)


class Sender:
    """Enqueues jobs; an outage of Redis is stated once per tick and waited out."""

    def __init__(self, application: Application, broker: RelayBroker) -> None:
        self._application = application
        self._broker = broker

    async def job(
        self, duty: str, queue: str, actor: str, context: str, *args: str | int, force: bool = False
    ) -> bool:
        """Enqueue a job unless one of its duty is outstanding; ``force`` replaces that one."""
        try:
            token = await self._application.gates.open(
                duty, force=force, send=lambda token: self._broker.entry(job(queue, actor, context, *args, token))
            )
        except Outage as error:
            self._application.facts(OutageSeen(context=context, server="redis", error=error.message))
            return False
        return token is not None

    async def runs(self, context: str, runs: Sequence[WaitingRun]) -> None:
        """Enqueue runs of cron jobs. Their rows do what gates do for others."""
        messages = [job(CRON_QUEUE, "run_cron", context, run.job, run.scheduled_for.isoformat()) for run in runs]
        try:
            if messages:
                await asyncio.to_thread(self._broker.enqueue_many, messages)
        except Outage as error:
            self._application.facts(OutageSeen(context=context, server="redis", error=error.message))

    async def turn(self, duty: str, actor: str, context: str, *args: str) -> bool:
        """Enqueue an audit: which page is its turn goes by the clock, so that no process has to remember it."""
        turn = int(time.time() / _RECONCILE.total_seconds())
        return await self.job(duty, UPKEEP_QUEUE, actor, context, *args, turn)


class PublishTick:
    """Asks the database whether anything is due, and if so sends a job per shard that it concerns.

    The tick is the guarantee. The hint that producers send while the outbox sleeps runs the same tick
    at once. Under load the outbox is awake: no transaction pays for a hint, and polling is enough.
    """

    def __init__(self, application: Application, context: str, send: Sender) -> None:
        self._parts = application.context(context)
        self._facts = application.facts
        self._send = send
        self._hints = Hints(context, self._poll, application.facts)
        self._hinted = 0
        self._awake_until = 0.0
        self._lost = False
        self._running = asyncio.Lock()

    def take_over(self) -> None:
        """Another has led until now: what it enqueued may sit in a back-off that nobody else would cut short."""
        self._lost = True

    async def tick(self) -> None:
        """One poll. Never raises for an outage: the next tick comes anyway."""
        self._parts.wakeup.listen(EVENTS, self._hint)
        await self._poll()
        self._hinted = 0

    async def _poll(self) -> bool:
        """Send jobs if anything is due; returns whether it is left to jobs that are outstanding already."""
        async with self._running:
            try:
                due = await self._parts.wakeup.due(_MANY)
                await self._parts.wakeup.set_sleeping(self._may_sleep(due))
            except DatabaseUnreachable as error:
                self._lost = True
                self._facts(OutageSeen(context=self._parts.name, server="postgresql", error=error.message))
                return False
            except asyncio.CancelledError:
                # Given up: the database is silent, which is as bad.
                self._lost = True
                raise
            return due.count > 0 and not await self._publish(due)

    def _may_sleep(self, due: Due) -> bool:
        """Many events or hints at once keep the outbox awake for a second."""
        now = asyncio.get_running_loop().time()
        if due.count >= _MANY or self._hinted > _MANY_HINTS:
            self._awake_until = now + _AWAKE
        return now >= self._awake_until

    async def _publish(self, due: Due) -> bool:
        # After an outage of the database the outstanding job may sit in a back-off.
        force, self._lost = self._lost, False
        name, count = self._parts.name, self._parts.settings.publish.shards
        # Of many events some were not counted, and a forced job is one for whatever a lost one held.
        everywhere = force or due.count >= _MANY
        shards = [n for n in range(count) if everywhere or due.concerns(Shard(n, count))]
        sent = await asyncio.gather(
            *(
                self._send.job(f"publish:{name}:{shard}", PUBLISH_QUEUE, "publish_shard", name, shard, force=force)
                for shard in shards
            )
        )
        return all(sent)

    def _hint(self) -> None:
        self._hinted += 1
        self._hints()
