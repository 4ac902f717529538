"""The consuming actors, loaded by ``relay.actors``. Arguments are names and ids, never content."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Final

from consumer.deadletters import RecordDeadLetters, SendAlerts
from consumer.gaps import Gaps
from consumer.handling import enqueue, on_receipt
from consumer.order import WatchNumbers
from consumer.pull import PullConfig, PullMessages
from relay import jobs
from relay.access import http_access
from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.adapters.jetstream.reader import StreamReader
from relay.adapters.webhook import Webhook
from relay.domain.facts import MessagesReEnqueued
from relay.domain.topology import advisory_consumer
from relay.worker import OUTAGE_RETRIES, actor, application, broker, long_running, periodic

#: How many seconds a pull job runs before it ends, so that another worker can take the next turn.
_TURN: Final = 60.0
_SWEEP_LIMIT: Final = 1_000
_MAX_BATCH: Final = 300
_PAGE: Final = 1_000


@cache
def _pull(context: str, subscription: str) -> PullMessages:
    settings = application.subscription(context, subscription)
    config = PullConfig(
        context=context,
        subscription=subscription,
        envelope=settings.envelope,
        batch_size=_batch_size(settings.max_ack_pending),
        ack_on_receipt=on_receipt(context, subscription),
    )
    return PullMessages(
        config,
        application.inbox(context, subscription),
        application.consumer(context, subscription),
        enqueue(context, subscription),
        application.facts,
        application.order(context, subscription),
        _watch(context, subscription),
    )


@cache
def _watch(context: str, subscription: str) -> WatchNumbers | None:
    order, settings = application.order(context, subscription), application.subscription(context, subscription)
    if order is None:
        return None
    return WatchNumbers(subscription, settings.stream, order, application.consumer(context, subscription))


def _batch_size(max_ack_pending: int) -> int:
    """Return at most what JetStream hands out at once; -1 means no limit."""
    return _MAX_BATCH if max_ack_pending < 0 else min(max_ack_pending, _MAX_BATCH)


@actor(jobs.PULL, priority=0, **OUTAGE_RETRIES)
async def pull_messages(context: str, subscription: str, token: str) -> None:
    """Pull one subscription into the inbox until its time is over. The scheduler then sends another job."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _TURN
    async with long_running(jobs.PULL.of(context, subscription), token) as ours:
        if ours:
            await _pull(context, subscription).run(lambda: not application.stopping and loop.time() < end)


@actor(jobs.SWEEP_INBOX, priority=5, max_retries=0)
async def sweep_inbox(context: str, subscription: str, token: str) -> None:
    """Enqueue again what should be in a queue and is not: Redis was flushed, or a worker died.

    A message that still waits in a long queue is not lost. To enqueue it again would make the queue longer
    and longer. So the sweep takes only messages that were enqueued before the queue's head.
    """
    async with periodic(jobs.SWEEP_INBOX.of(context, subscription), token) as ours:
        if not ours:
            return
        waited = await asyncio.to_thread(broker.head_waits, jobs.HANDLE_QUEUE, jobs.share(context, subscription))
        ids = await application.inbox(context, subscription).overdue(subscription, _SWEEP_LIMIT, waited)
        if ids:
            await enqueue(context, subscription)(ids)
            application.facts(MessagesReEnqueued(context=context, subscription=subscription, count=len(ids)))


@actor(jobs.KEEP_IN_PROGRESS, priority=5, max_retries=0)
async def keep_in_progress(context: str, subscription: str, token: str) -> None:
    """Send +WPI for every message that waits or runs, so that JetStream does not deliver it again."""
    async with periodic(jobs.KEEP_IN_PROGRESS.of(context, subscription), token) as ours:
        if ours and not on_receipt(context, subscription):
            consumer = application.consumer(context, subscription)
            async for replies in application.inbox(context, subscription).waiting(subscription, _PAGE):
                await consumer.in_progress(replies)


@actor(jobs.RESCUE_EXHAUSTED, priority=5, max_retries=0)
async def rescue_exhausted(context: str, subscription: str, token: str) -> None:
    """Take messages into the inbox that JetStream has stopped delivering (max_deliver)."""
    async with periodic(jobs.RESCUE_EXHAUSTED.of(context, subscription), token) as ours:
        if ours:
            await _gaps(context, subscription).rescue(_advisories(context, subscription))


@actor(jobs.RECOVER_DELIVERIES, priority=5, max_retries=0)
async def recover_deliveries(context: str, subscription: str, token: str) -> None:
    """Take messages into the inbox that were delivered to a worker which died before it stored them."""
    async with periodic(jobs.RECOVER_DELIVERIES.of(context, subscription), token) as ours:
        if ours:
            await _gaps(context, subscription).recover()


@actor(jobs.RECORD_DEAD_LETTERS, priority=5, max_retries=0)
async def record_dead_letters(context: str, token: str) -> None:
    """Record new messages of the context's DLQ stream as incidents, and send an alert if one is due."""
    async with periodic(jobs.RECORD_DEAD_LETTERS.of(context), token) as ours:
        if not ours:
            return
        await _record(context).run()
        if (alerts := _alerts(context)) is not None:
            await alerts.run()


@cache
def _record(context: str) -> RecordDeadLetters:
    parts = application.context(context)
    letters = application.fetching(parts.settings.dead_letter_spec())
    return RecordDeadLetters(context, letters, parts.incidents, application.facts)


def _check_access() -> None:
    """Build every handler now, so that a worker whose credentials cannot be used does not start."""
    for context, settings in application.settings.contexts.items():
        for name, subscription in settings.subscriptions.items():
            if subscription.python_module is None:
                application.handler(context, name)
        _alerts(context)


@cache
def _alerts(context: str) -> SendAlerts | None:
    parts = application.context(context)
    alerts = parts.settings.alerts
    if alerts.webhook is None:
        return None
    channel = Webhook(alerts.webhook.get_secret_value(), http_access(alerts, f"contexts.{context}.alerts"))
    return SendAlerts(context, parts.incidents, channel, alerts.per_minute, application.facts)


@actor(jobs.RECONCILE_INBOX, priority=5, max_retries=0)
async def reconcile_inbox(context: str, subscription: str, turn: int | None, token: str) -> None:
    """Fetch what JetStream has finished but the inbox does not hold; ``turn`` None compares everything."""
    async with periodic(jobs.RECONCILE_INBOX.of(context, subscription), token) as ours:
        if ours:
            find = application.find_missing(context, subscription)
            await _gaps(context, subscription).reconcile(find, turn)


@cache
def _gaps(context: str, subscription: str) -> Gaps:
    spec = application.subscription(context, subscription).consumer_spec()
    return Gaps(
        context=context,
        subscription=subscription,
        stream=spec.stream,
        inbox=application.inbox(context, subscription),
        consumer=application.consumer(context, subscription),
        reader=StreamReader(
            application.nats, stream=spec.stream, durable=spec.durable, filter_subject=spec.filter_subject
        ),
        pull=_pull(context, subscription),
        facts=application.facts,
        watch=_watch(context, subscription),
        on_receipt=on_receipt(context, subscription),
    )


@cache
def _advisories(context: str, subscription: str) -> NatsJetStreamConsumer:
    spec = application.subscription(context, subscription).consumer_spec()
    return application.fetching(advisory_consumer(spec))


_check_access()
