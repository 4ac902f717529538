"""``dramatiq relay.actors``: the actors of every context, for one fleet that publishes and consumes.

Loads the modules with actors that ``RELAY_ACTOR_MODULES`` names.
"""

from __future__ import annotations

import importlib
import time
from datetime import datetime
from functools import cache
from typing import Any

from relay import jobs
from relay.adapters.jetstream import payloads
from relay.adapters.jetstream.query_server import AnswerQueries
from relay.adapters.jetstream.subject_keys import QUERY_TIMEOUT, answering
from relay.adapters.postgres.sequences import mend_sequences
from relay.bus.queries import load_queries
from relay.cron import registry
from relay.cron.run import CronRows, RunCron
from relay.domain.errors import Outage
from relay.domain.facts import OutageSeen
from relay.domain.ordering import Shard, goes_on
from relay.domain.schedule import WaitingRun
from relay.domain.topology import covers
from relay.envelopes import writer
from relay.execution.runners import RunOnLoop
from relay.monitoring import initial_labels
from relay.settings.model import QueriesSettings
from relay.worker import (
    OUTAGE_RETRIES,
    actor,
    application,
    checks,
    exit_on_error,
    long_running,
    metrics,
    periodic,
    row_actor,
    settings,
)


@actor(jobs.PUBLISH, priority=0, **OUTAGE_RETRIES)
async def publish_shard(context: str, shard: int, *more: Any) -> None:
    """Drain one shard of a context's outbox (CMD-050).

    ``more``: how many shards there are, if not as configured; then the token.

    A long drain ends when the number of workers has changed: the scheduler then sends the right number of jobs.
    """
    *shards, token = more
    configured, began = application.context(context).settings.publish.shards, time.monotonic()
    count = shards[0] if shards else configured
    if shard >= count:
        return

    def fits() -> bool:
        return goes_on(count, configured, application.members.last_publishing, time.monotonic() - began)

    async with long_running(jobs.PUBLISH.of(context, shard), token) as ours:
        if ours:
            publish = application.context(context).publish

            def go_on() -> bool:
                return bool(ours) and not application.stopping and fits()

            await publish.resumed(go_on)
            await publish.drain(Shard(shard, count), go_on=go_on)


@actor(jobs.RECONCILE_STREAM, priority=5, max_retries=0)
async def reconcile_stream(context: str, page: int, token: str) -> None:
    """Compare the PubAck ledger with the stream: publish again what the stream lost, note what the outbox lost."""
    async with periodic(jobs.RECONCILE_STREAM.of(context), token) as ours:
        if ours:
            await mend_sequences(context, application.context(context).pool.connection, application.facts)
            await application.context(context).reconcile.tick(page)
            await application.orphans(context).tick(page)


@actor(jobs.PRUNE, priority=5, max_retries=0)
async def prune(context: str, token: str) -> None:
    """Delete what is no longer needed: processed events and runs of cron jobs after 30 days."""
    async with periodic(jobs.PRUNE.of(context), token) as ours:
        if ours:
            await application.context(context).schedule.prune()


@actor(jobs.ARCHIVE, priority=20, max_retries=0)
async def archive(context: str, token: str) -> None:
    """Move old rows to cold storage, for a few minutes at most."""
    async with periodic(jobs.ARCHIVE.of(context), token) as ours:
        if ours and (rows := application.archive(context)) is not None:
            await rows.tick(lambda: not application.stopping)


@row_actor(jobs.RUN_CRON, jobs.CRON_QUEUE, priority=10, max_retries=0)
async def run_cron(context: str, name: str, scheduled_for: str) -> None:
    """Run an application's cron job. The row controls the retries; a scheduler enqueues the job again."""
    try:
        await _cron(context).run(WaitingRun(name, datetime.fromisoformat(scheduled_for)))
    except Outage as error:
        application.facts(OutageSeen(context=context, server=error.server, error=error.explanation))


@cache
def _cron(context: str) -> RunCron:
    parts = application.context(context)
    error_text = parts.settings.error_detail == "text"
    runs = CronRows(context, registry, parts.schedule, application.facts, error_text=error_text)
    return RunOnLoop(runs, runs.settle)


def _answer(name: str, queries: QueriesSettings) -> None:
    """Make this process answer the queries of a context. Raises InvalidHandler for an unusable module."""
    offered = load_queries(queries.module, lambda subject: any(covers(it, subject) for it in queries.subjects))
    answers = AnswerQueries(name, offered, application.nats, application.facts, queries.timeout)
    application.on_start.append(answers.start)
    application.on_stop.append(answers.stop)


def _answer_for_keys(name: str) -> None:
    """Make this process answer for the keys of personal values of a context."""
    offered = answering(name, application.subject_keys(name))
    answers = AnswerQueries(name, offered, application.nats, application.facts, QUERY_TIMEOUT)
    application.on_start.append(answers.start)
    application.on_stop.append(answers.stop)


def _answer_for_payloads(name: str) -> None:
    """Make this process answer for the content of large payloads of a context."""
    offered = payloads.answering(name, application.payloads)
    answers = AnswerQueries(name, offered, application.nats, application.facts, payloads.QUERY_TIMEOUT)
    application.on_start.append(answers.start)
    application.on_stop.append(answers.stop)


# Load now, so that a worker does not start with an envelope or a handler that cannot be used.
with exit_on_error():
    for _context in settings.contexts:
        writer(settings, _context)
    for _module in settings.actor_modules:
        importlib.import_module(_module)
    for _check in checks:
        _check()
    for _context, _found in settings.contexts.items():
        if _found.queries is not None:
            _answer(_context, _found.queries)
        if settings.answers_for_keys(_context):
            _answer_for_keys(_context)
        if _found.payload_limit is not None:
            _answer_for_payloads(_context)
    # If a cron job belongs to no configured context, the worker does not start. The scheduler does the same.
    _crons = {name: [it.name for it in registry.of(name, settings.contexts)] for name in settings.contexts}
    if metrics is not None:
        metrics.expect(initial_labels(settings, jobs=_crons))
