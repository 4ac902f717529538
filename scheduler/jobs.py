"""The built-in jobs, as a table. Every tick is harmless when it runs twice or not at all.

A tick enqueues a job for the fleet and does no work itself. Its gate keeps jobs of one duty from
piling up behind each other while no worker is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from relay.adapters.redis import RelayBroker
from relay.bootstrap import PUBLISH_QUEUE, PULL_QUEUE, UPKEEP_QUEUE, Application, job
from relay.domain.errors import DatabaseUnreachable, Outage
from relay.domain.facts import OutageSeen

_PULL: Final = timedelta(milliseconds=500)
_UPKEEP: Final = {
    "sweep_inbox": timedelta(seconds=1),
    "recover_deliveries": timedelta(seconds=3),
    "rescue_exhausted": timedelta(seconds=10),
}
#: After this many ticks with work in a row the outbox is under load, and hints are no use.
_BUSY_TICKS: Final = 3


@dataclass(frozen=True, slots=True)
class Job:
    """One row of the table: what runs, how often, under which name."""

    name: str
    every: timedelta
    tick: Callable[[], Awaitable[None]]


def jobs(application: Application, broker: RelayBroker) -> Iterator[Job]:
    """All built-in jobs of all contexts."""
    send = _Sender(application, broker)
    for context, settings in application.settings.contexts.items():
        publish = PublishTick(application, context, send)
        yield Job(f"publish:{context}", settings.publish.poll_interval, publish.tick)
        for name, subscription in settings.subscriptions.items():
            pull = partial(send.job, f"pull:{context}:{name}", PULL_QUEUE, "pull_messages", context, name)
            yield Job(f"pull:{context}:{name}", _PULL, pull)
            upkeep = {**_UPKEEP, "keep_in_progress": subscription.ack_wait / 4}
            for actor, every in upkeep.items():
                duty = f"{actor}:{context}:{name}"
                yield Job(duty, every, partial(send.job, duty, UPKEEP_QUEUE, actor, context, name))


class _Sender:
    """Enqueues jobs; an outage of Redis is stated once per tick and waited out."""

    def __init__(self, application: Application, broker: RelayBroker) -> None:
        self._application = application
        self._broker = broker

    async def job(
        self, duty: str, queue: str, actor: str, context: str, *args: str | int, force: bool = False
    ) -> None:
        """Enqueue a job unless one of its duty is outstanding; ``force`` replaces that one."""
        try:
            token = await self._application.gates.open(duty, force=force)
            if token is not None:
                message = job(queue, actor, context, *args, token)
                await asyncio.to_thread(self._broker.enqueue_many, [message])
        except Outage as error:
            self._application.facts(OutageSeen(context=context, server="redis", error=error.message))


class PublishTick:
    """Asks the database whether anything is due, and if so sends a job per shard.

    The tick is the guarantee. The hint that producers send while the outbox sleeps runs the same tick
    at once. The scheduler says when it sleeps, and stops saying so under load.
    """

    def __init__(self, application: Application, context: str, send: _Sender) -> None:
        self._parts = application.context(context)
        self._facts = application.facts
        self._send = send
        self._busy = 0
        self._lost = False
        self._running = asyncio.Lock()
        self._hinted = False
        self._hearing: asyncio.Task[None] | None = None

    async def tick(self) -> None:
        """One poll. Never raises for an outage: the next tick comes anyway."""
        self._parts.wakeup.listen(self._hint)
        async with self._running:
            try:
                await self._poll()
            except DatabaseUnreachable as error:
                self._lost = True
                self._facts(OutageSeen(context=self._parts.name, server="postgresql", error=error.message))

    async def _poll(self) -> None:
        due = await self._parts.wakeup.due()
        self._busy = self._busy + 1 if due else 0
        await self._parts.wakeup.set_sleeping(self._busy < _BUSY_TICKS)
        if due:
            # After an outage of the database the outstanding job may sit in a long back-off.
            force, self._lost = self._lost, False
            for shard in range(self._parts.settings.publish.shards):
                name = self._parts.name
                duty = f"publish:{name}:{shard}"
                await self._send.job(duty, PUBLISH_QUEUE, "publish_shard", name, shard, force=force)

    def _hint(self) -> None:
        self._hinted = True
        if self._hearing is None or self._hearing.done():
            self._hearing = asyncio.get_running_loop().create_task(self._answer_hints())

    async def _answer_hints(self) -> None:
        while self._hinted:
            self._hinted = False
            await self.tick()
