"""How the parts of a subscription are put together on a worker. Each is built once, on the worker's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final, TypeAlias
from uuid import UUID

import dramatiq

from consumer.deadletters import RecordDeadLetters, SendAlerts
from consumer.functions import CALLS, PythonEventHandler, has_plain
from consumer.gaps import Gaps
from consumer.handlers import load
from consumer.messages import FunctionRows, MessageConfig, MessageRows
from consumer.order import GoOn, WatchNumbers
from consumer.pull import PullConfig, PullMessages
from relay import jobs
from relay.access import http_access
from relay.adapters.jetstream.reader import StreamReader
from relay.adapters.onloop import leave_place
from relay.adapters.postgres.chunks import PostgresChunks
from relay.adapters.postgres.transactions import HandlerTransactions
from relay.adapters.redis import delayed
from relay.adapters.webhook import Webhook
from relay.adapters.workers import event_loop
from relay.domain.errors import ConfigurationError
from relay.domain.retry import RetryPolicy
from relay.domain.topology import advisory_consumer
from relay.execution.chunk import RunChunk, side_by_side
from relay.execution.in_thread import RunInThread
from relay.execution.on_loop import PAUSE, RunOnLoop
from relay.ports import ClaimedMessage, HandlerRequest, JetStreamConsumer
from relay.worker import application, broker, runtime

#: How many messages a pull request asks for at most.
_MAX_BATCH: Final = 300

Messages: TypeAlias = RunOnLoop[UUID, ClaimedMessage, HandlerRequest]


def on_receipt(context: str, subscription: str) -> bool:
    """Tell whether a message is acknowledged as soon as its inbox row is committed."""
    return application.subscription(context, subscription).settle == "inbox"


def enqueue(context: str, subscription: str) -> Callable[[Sequence[UUID]], Awaitable[None]]:
    """Return a function that enqueues messages of a subscription for the workers, in chunks of its size."""
    size = application.subscription(context, subscription).chunk

    async def put(ids: Sequence[UUID]) -> None:
        texts = [str(id) for id in ids]
        chunks = [texts[first : first + size] for first in range(0, len(texts), size)]
        messages = [jobs.handle(context, subscription, chunk) for chunk in chunks]
        await asyncio.to_thread(broker.enqueue_many, messages)

    return put


async def enqueue_later(context: str, subscription: str, delays: dict[UUID, timedelta]) -> None:
    """Enqueue messages, each alone and after its own delay."""
    messages = [(jobs.handle(context, subscription, [str(id)]), delay) for id, delay in delays.items()]
    if messages:
        again = [delayed(message, delay) if delay else message for message, delay in messages]
        await asyncio.to_thread(broker.enqueue_many, again)


def calls_plain_functions(context: str, subscription: str) -> bool:
    """Tell whether a subscription's messages need threads."""
    known = application.settings.contexts.get(context)
    settings = None if known is None else known.subscriptions.get(subscription)
    if settings is None:
        # A message of a subscription that is gone: its actor raises, in a thread.
        return True
    return settings.python_module is not None and has_plain(load(settings.python_module))


@cache
def _rows(context: str, subscription: str) -> MessageRows:
    settings = application.subscription(context, subscription)
    config = MessageConfig(
        context=context,
        subscription=subscription,
        envelope=settings.envelope,
        policy=RetryPolicy.of(settings.max_attempts, settings.backoff_initial, settings.backoff_max),
        acked=on_receipt(context, subscription),
        error_text=settings.error_detail == "text",
    )
    handler = application.handler(context, subscription)
    kind: Any = FunctionRows if isinstance(handler, PythonEventHandler) else MessageRows
    rows: MessageRows = kind(
        config,
        application.inbox(context, subscription),
        handler,
        application.consumer(context, subscription),
        application.context(context).dead_letters,
        application.facts,
        _go_on(context, subscription),
    )
    return rows


def _go_on(context: str, subscription: str) -> GoOn | None:
    order = application.order(context, subscription)
    if order is None:
        return None
    return GoOn(order, application.consumer(context, subscription), enqueue(context, subscription))


@cache
def messages(context: str, subscription: str) -> Messages:
    """What handles the messages of a subscription on the event loop."""
    rows = _rows(context, subscription)
    # No pause in an ordered subscription: the next message of the key waits for this step.
    pause = 0.0 if rows.ordered else PAUSE
    run = RunOnLoop(rows, asyncio.get_running_loop(), answered=leave_place, pause=pause)
    application.on_stop.append(run.drain)
    return run


@cache
def chunks(context: str, subscription: str) -> RunChunk:
    """What handles the chunks of a subscription."""
    handler, order = application.handler(context, subscription), application.order(context, subscription)
    claims = PostgresChunks(application.context(context).pool, ordered=order is not None)
    ask_all = handler.handle_all if isinstance(handler, PythonEventHandler) else side_by_side(handler)
    return RunChunk(_rows(context, subscription), claims, ask_all)


@cache
def in_thread(context: str, subscription: str) -> RunInThread[UUID, ClaimedMessage, HandlerRequest]:
    """What handles the messages of a subscription in worker threads."""
    loop = event_loop()

    async def later(id: UUID, delay: timedelta) -> None:
        await enqueue_later(context, subscription, {id: delay})

    def ours(message: dramatiq.Message[Any]) -> bool:
        return message.actor_name == jobs.HANDLE_MESSAGE

    def waiting(limit: int) -> list[UUID]:
        found = runtime.ahead(jobs.HANDLE_QUEUE, jobs.share(context, subscription), ours, limit)
        return [jobs.handled_id(message) for message in found]

    async def make() -> RunInThread[UUID, ClaimedMessage, HandlerRequest]:
        # On the loop, because everything that threads share is built there.
        rows = _rows(context, subscription)
        if not isinstance(rows, FunctionRows):
            raise ConfigurationError(f"{subscription} calls no functions", field="handler")
        run = RunInThread(
            messages(context, subscription), rows, rows.transactions, loop, runtime.relieve, later, waiting
        )
        application.on_quiesce.append(run.prefetch.close)
        return run

    return loop.run_coroutine(make())


@cache
def pull(context: str, subscription: str) -> PullMessages:
    """What pulls a subscription into its inbox."""
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
        watch(context, subscription),
    )


@cache
def watch(context: str, subscription: str) -> WatchNumbers | None:
    """What numbers the deliveries of an ordered subscription."""
    order, settings = application.order(context, subscription), application.subscription(context, subscription)
    if order is None:
        return None
    return WatchNumbers(subscription, settings.stream, order, application.consumer(context, subscription))


def _batch_size(max_ack_pending: int) -> int:
    """Return at most what JetStream hands out at once; -1 means no limit."""
    return _MAX_BATCH if max_ack_pending < 0 else min(max_ack_pending, _MAX_BATCH)


@cache
def record(context: str) -> RecordDeadLetters:
    """What records the dead letters of a context."""
    parts = application.context(context)
    letters = application.fetching(parts.settings.dead_letter_spec())
    return RecordDeadLetters(context, letters, parts.incidents, application.facts)


@cache
def alerts(context: str) -> SendAlerts | None:
    """What sends the alerts of a context; None when nobody wants them."""
    parts = application.context(context)
    alerts = parts.settings.alerts
    if alerts.webhook is None:
        return None
    channel = Webhook(alerts.webhook.get_secret_value(), http_access(alerts, f"contexts.{context}.alerts"))
    return SendAlerts(context, parts.incidents, channel, alerts.per_minute, application.facts)


@cache
def gaps(context: str, subscription: str) -> Gaps:
    """What takes up messages that went missing on the way into the inbox."""
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
        pull=pull(context, subscription),
        facts=application.facts,
        watch=watch(context, subscription),
        on_receipt=on_receipt(context, subscription),
    )


@cache
def advisories(context: str, subscription: str) -> JetStreamConsumer:
    """Where JetStream says which messages it has given up."""
    spec = application.subscription(context, subscription).consumer_spec()
    return application.fetching(advisory_consumer(spec))


def _python_handler(context: str, name: str) -> PythonEventHandler:
    """Return the handler for a subscription's module, on its context's database.

    Raises InvalidHandler and ConfigurationError.
    """
    parts, settings = application.context(context), application.subscription(context, name)
    if settings.python_module is None:
        raise ConfigurationError(f"{settings.handler} names no module", field="handler")
    transactions = HandlerTransactions(
        parts.settings.database_url.get_secret_value(),
        limit=settings.handler_timeout,
        size=CALLS,
        application_name=f"jetrelay-handler-{context}",
    )
    return PythonEventHandler(
        load(settings.python_module), transactions, timeout=settings.handler_timeout, unknown=settings.unknown
    )


def _check_access() -> None:
    """Build every handler now, so that a worker whose credentials cannot be used does not start."""
    for context, settings in application.settings.contexts.items():
        for name, subscription in settings.subscriptions.items():
            if subscription.python_module is None:
                application.handler(context, name)
        alerts(context)


application.handler_kinds["python"] = _python_handler
for _context in application.settings.contexts.values():
    for _subscription in _context.subscriptions.values():
        # Load now, so that a worker with an unusable handler does not start.
        if _subscription.python_module is not None:
            load(_subscription.python_module)
_check_access()
