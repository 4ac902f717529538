"""``dramatiq relay.actors``: the actors of every context, published and consumed by one fleet.

Importing this module reads the settings, makes the broker, and loads the modules that
``RELAY_ACTOR_MODULES`` names.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cache
from typing import Any, Final

import dramatiq
from dramatiq.errors import Retry
from dramatiq.middleware import Retries

from relay import failpoints
from relay.adapters.gate import LONGEST_BACKOFF
from relay.adapters.onloop import ended
from relay.adapters.workers import WorkerRuntime
from relay.bootstrap import (
    ARCHIVE_QUEUE,
    CRON_QUEUE,
    PUBLISH_QUEUE,
    PULL_QUEUE,
    UPKEEP_QUEUE,
    Application,
    job,
    job_broker,
)
from relay.cron import registry
from relay.cron.run import RunCron
from relay.domain.errors import Outage
from relay.domain.facts import OutageSeen
from relay.domain.ordering import Shard
from relay.domain.schedule import WaitingRun
from relay.metering import Exposition, known_labels, worker_metrics
from relay.settings import load_settings
from relay.telemetry.logs import LogFacts, configure

settings = load_settings()
configure(settings.log_level, settings.log_format)
failpoints.enable(settings.failpoints)
application = Application(settings, role="worker")
application.facts.listen(LogFacts())
metrics = worker_metrics(settings)
if metrics is not None:
    application.facts.listen(metrics)

#: Dramatiq's own back-off for jobs that wait for a server: 1 s to 4 s with jitter, without end.
OUTAGE_RETRIES: Final[dict[str, Any]] = {
    "max_retries": None,
    "min_backoff": 1_000,
    "max_backoff": int(LONGEST_BACKOFF.total_seconds() * 1_000),
}

_background: set[asyncio.Task[None]] = set()


def _budgets() -> dict[str, int | None]:
    """Threads of their own for the duties that wait long: every shard, every subscription, the sweeps."""
    contexts = settings.contexts.values()
    return {
        PUBLISH_QUEUE: max(1, sum(context.publish.shards for context in contexts)),
        PULL_QUEUE: max(1, sum(len(context.subscriptions) for context in contexts)),
        # Recovering waits two seconds when it suspects a loss.
        UPKEEP_QUEUE: 4,
        # It works for minutes when much has come of age.
        ARCHIVE_QUEUE: 1,
    }


async def _start() -> None:
    application.nats.on_up.append(_drain_all)
    await application.start()


def _drain_all() -> None:
    """The broker is back, or this worker is new: publish and pull at once, whatever back-off a job is in.

    And see whether it came back with all it had: a server that was restored is a server that was away.
    """
    for name, context in settings.contexts.items():
        spawn(_send_reconcile(name))
        # A pull that runs goes on; one that waits is replaced by the next tick's.
        spawn(application.gates.wake([f"pull:{name}:{it}" for it in context.subscriptions]))
        for shard in range(context.publish.shards):
            spawn(_send_publish(name, shard))


async def _send_publish(context: str, shard: int) -> None:
    try:
        await application.gates.open(
            f"publish:{context}:{shard}",
            force=True,
            send=lambda token: broker.entry(job(PUBLISH_QUEUE, "publish_shard", context, shard, token)),
        )
    except Outage as error:
        application.facts(OutageSeen(context=context, server="redis", error=error.message))


async def _send_reconcile(context: str) -> None:
    try:
        await application.gates.open(
            f"reconcile_stream:{context}",
            # One that is under way looked at the server as it was, or waits for the one that is gone.
            force=True,
            send=lambda token: broker.entry(job(UPKEEP_QUEUE, "reconcile_stream", context, 0, token)),
        )
    except Outage as error:
        application.facts(OutageSeen(context=context, server="redis", error=error.message))


def spawn(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on its own, kept alive until it ends."""
    task = asyncio.get_running_loop().create_task(coroutine)
    _background.add(task)
    task.add_done_callback(_background.discard)


@asynccontextmanager
async def duty(context: str, name: str, token: str) -> AsyncIterator[bool]:
    """Run a job that must be outstanding only once; yields False when another has taken it over.

    An outage becomes Dramatiq's Retry, so that its middleware supplies the back-off; the gate stays
    shut meanwhile, or ticks would add a job each. It opens by itself if the job does not come back.
    """
    async with application.gates.hold(name, token) as ours:
        try:
            yield ours
        except Outage as error:
            application.facts(OutageSeen(context=context, server=error.server, error=error.message))
            await application.gates.back_off(name, token)
            raise Retry(str(error)) from None
    if ours:
        await application.gates.close(name, token)


@asynccontextmanager
async def chore(name: str, token: str) -> AsyncIterator[None]:
    """Run a short periodic job. An outage ends it quietly: the next tick sends another."""
    try:
        yield
    except Outage as error:
        context = name.split(":")[1]
        application.facts(OutageSeen(context=context, server=error.server, error=error.message))
    await application.gates.close(name, token)


#: Threads by queue, None for as many as ``--threads``; the modules loaded below may add theirs.
budgets = _budgets()
runtime = WorkerRuntime(start=_start, quiesce=application.quiesce, stop=application.stop, budgets=budgets)
broker = job_broker(settings, [Retries(), runtime, Exposition(settings)])
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=PUBLISH_QUEUE, priority=0, **OUTAGE_RETRIES)
async def publish_shard(context: str, shard: int, token: str) -> None:
    """Drain one shard of a context's outbox (CMD-050)."""
    count = application.context(context).settings.publish.shards
    if shard >= count:
        return
    async with duty(context, f"publish:{context}:{shard}", token) as ours:
        if ours:
            await application.context(context).publish.drain(
                Shard(shard, count), go_on=lambda: not application.stopping
            )


@dramatiq.actor(queue_name=UPKEEP_QUEUE, priority=5, max_retries=0)
async def reconcile_stream(context: str, turn: int, token: str) -> None:
    """Compare the PubAck ledger with the stream; what the stream lost is published again."""
    async with chore(f"reconcile_stream:{context}", token):
        await application.context(context).reconcile.tick(turn)


@dramatiq.actor(queue_name=UPKEEP_QUEUE, priority=5, max_retries=0)
async def prune(context: str, token: str) -> None:
    """Forget what nobody will ask for any more: processed events and runs of cron jobs after 30 days."""
    async with chore(f"prune:{context}", token):
        await application.context(context).schedule.prune()


@dramatiq.actor(queue_name=ARCHIVE_QUEUE, priority=20, max_retries=0)
async def archive(context: str, token: str) -> None:
    """Move rows that have had their time to cold storage, for a few minutes at most."""
    async with chore(f"archive:{context}", token):
        if (rows := application.archive(context)) is not None:
            await rows.tick(lambda: not application.stopping)


class _RunCron:
    """Runs an application's cron jobs. The row owns the retries; a scheduler enqueues it again."""

    def takes(self, *_: str) -> bool:
        return True

    async def run(self, _leave: Callable[[], None], context: str, name: str, scheduled_for: str) -> None:
        try:
            await _cron(context).run(WaitingRun(name, datetime.fromisoformat(scheduled_for)))
        except Outage as error:
            application.facts(OutageSeen(context=context, server=error.server, error=error.message))


@cache
def _cron(context: str) -> RunCron:
    parts = application.context(context)
    error_text = parts.settings.error_detail == "text"
    return RunCron(context, registry, parts.schedule, application.facts, error_text=error_text)


dramatiq.actor(actor_name="run_cron", queue_name=CRON_QUEUE, priority=10, max_retries=0)(ended)
runtime.on_loop["run_cron"] = _RunCron()


for _module in settings.actor_modules:
    importlib.import_module(_module)
# A worker whose cron jobs cannot be placed does not start, as a scheduler does not.
_jobs = {name: [it.name for it in registry.of(name, settings.contexts)] for name in settings.contexts}
if metrics is not None:
    metrics.expect(known_labels(settings, jobs=_jobs))
