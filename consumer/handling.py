"""The actors that handle messages: one message at a time, or a chunk if the subscription has one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

import dramatiq
from dramatiq.errors import Retry

from consumer.chunk import ProcessChunk, side_by_side
from consumer.direct import ProcessDirectly
from consumer.finished import finished
from consumer.handlers import load
from consumer.inprocess import CALLS, PythonEventHandler, has_plain
from consumer.order import GoOn
from consumer.process import ProcessConfig, ProcessInboxMessage
from relay import jobs
from relay.adapters.onloop import ended, outcome
from relay.adapters.postgres.chunks import PostgresChunks
from relay.adapters.postgres.handling import HandlerTransactions
from relay.adapters.redis import delayed
from relay.adapters.workers import event_loop
from relay.domain.errors import ConfigurationError, Outage
from relay.domain.retry import RetryPolicy
from relay.handling.finished import Finished
from relay.ports import ClaimedMessage
from relay.worker import application, broker, runtime


def on_receipt(context: str, subscription: str) -> bool:
    """Tell whether a message is acknowledged as soon as its inbox row is committed."""
    return application.subscription(context, subscription).settle == "inbox"


def _go_on(context: str, subscription: str) -> GoOn | None:
    order = application.order(context, subscription)
    if order is None:
        return None
    return GoOn(order, application.consumer(context, subscription), enqueue(context, subscription))


@cache
def _process(context: str, subscription: str) -> ProcessInboxMessage:
    settings = application.subscription(context, subscription)
    config = ProcessConfig(
        context=context,
        subscription=subscription,
        envelope=settings.envelope,
        policy=RetryPolicy.of(settings.max_attempts, settings.backoff_initial, settings.backoff_max),
        acked=on_receipt(context, subscription),
        error_text=settings.error_detail == "text",
    )
    return ProcessInboxMessage(
        config,
        application.inbox(context, subscription),
        application.handler(context, subscription),
        application.consumer(context, subscription),
        application.context(context).dead_letters,
        application.facts,
        _go_on(context, subscription),
    )


def enqueue(context: str, subscription: str) -> Callable[[Sequence[UUID]], Awaitable[None]]:
    """Return a function that enqueues messages of a subscription for the workers, in chunks of its size."""
    size = application.subscription(context, subscription).chunk

    async def put(ids: Sequence[UUID]) -> None:
        texts = [str(id) for id in ids]
        chunks = [texts[first : first + size] for first in range(0, len(texts), size)]
        messages = [jobs.handle(context, subscription, chunk) for chunk in chunks]
        await asyncio.to_thread(broker.enqueue_many, messages)

    return put


@cache
def _attempt(context: str, subscription: str) -> Callable[[UUID], timedelta | None]:
    """Return what processes a message for a worker thread.

    A plain function runs in that thread, everything else on the event loop.
    """
    loop = event_loop()

    async def later(id: UUID, delay: timedelta) -> None:
        message = delayed(jobs.handle(context, subscription, [str(id)]), delay)
        await asyncio.to_thread(broker.enqueue_many, [message])

    def ours(message: dramatiq.Message[Any]) -> bool:
        return message.actor_name == jobs.HANDLE_MESSAGE

    def waiting(limit: int) -> list[UUID]:
        found = runtime.ahead(jobs.HANDLE_QUEUE, jobs.share(context, subscription), ours, limit)
        return [jobs.handled_id(message) for message in found]

    async def make() -> ProcessDirectly | None:
        # On the loop, because everything that threads share is built there.
        handler, one = application.handler(context, subscription), _process(context, subscription)
        if not isinstance(handler, PythonEventHandler) or not handler.plain:
            return None
        direct = ProcessDirectly(
            one, application.inbox(context, subscription), handler, loop, runtime.relieve, later, waiting
        )
        application.on_quiesce.append(direct.ahead.close)
        application.on_stop.append(direct.finished.drain)
        return direct

    if (direct := loop.run_coroutine(make())) is not None:
        return direct.process
    return lambda message_id: loop.run_coroutine(_process(context, subscription).process(message_id))


class _Message:
    """Messages for a service or a coroutine: the event loop calls it, and no thread waits."""

    def takes(self, context: str, subscription: str, *_: str) -> bool:
        known = application.settings.contexts.get(context)
        settings = None if known is None else known.subscriptions.get(subscription)
        if settings is None:
            return False
        return settings.python_module is None or not has_plain(load(settings.python_module))

    async def run(
        self, leave: Callable[[], None], context: str, subscription: str, message_id: str
    ) -> timedelta | None:
        process, finish = _process(context, subscription), _finished(context, subscription).add
        return await process.process(UUID(message_id), leave, finish)


class _Chunk:
    """Chunks of messages, for every kind of handler: plain functions get threads of their own.

    Each message to retry is enqueued alone, after its own delay.
    """

    def takes(self, *_: Any) -> bool:
        return True

    async def run(
        self, _leave: Callable[[], None], context: str, subscription: str, message_ids: list[str]
    ) -> None:
        with suppress(Outage):
            later = await _process_chunk(context, subscription).process([UUID(id) for id in message_ids])
            if later:
                again = [(jobs.handle(context, subscription, [str(id)]), delay) for id, delay in later.items()]
                await asyncio.to_thread(
                    broker.enqueue_many, [delayed(it, delay) if delay else it for it, delay in again]
                )


@cache
def _finished(context: str, subscription: str) -> Finished[ClaimedMessage]:
    one, inbox = _process(context, subscription), application.inbox(context, subscription)
    several = finished(one, inbox, asyncio.get_running_loop())
    application.on_stop.append(several.drain)
    return several


@cache
def _process_chunk(context: str, subscription: str) -> ProcessChunk:
    handler = application.handler(context, subscription)
    return ProcessChunk(
        _process(context, subscription),
        PostgresChunks(
            application.context(context).pool, ordered=application.order(context, subscription) is not None
        ),
        handler.handle_all if isinstance(handler, PythonEventHandler) else side_by_side(handler),
    )


@dramatiq.actor(actor_name=jobs.HANDLE_MESSAGE, queue_name=jobs.HANDLE_QUEUE, priority=10, max_retries=None)
def handle_message(context: str, subscription: str, message_id: str) -> None:
    """Process one inbox message (CMD-051). The row owns the retry; Dramatiq's Retries middleware times it."""
    try:
        # For a service, the event loop has processed the message before this actor runs.
        found = outcome()
        delay = found() if found else _attempt(context, subscription)(UUID(message_id))
    except Outage:
        # The row keeps its claim until the lease is over; the sweep brings it back.
        return
    if delay is not None:
        raise Retry(delay=int(delay / timedelta(milliseconds=1)))


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


dramatiq.actor(actor_name=jobs.HANDLE_CHUNK, queue_name=jobs.HANDLE_QUEUE, priority=10, max_retries=None)(ended)
runtime.on_loop |= {jobs.HANDLE_MESSAGE: _Message(), jobs.HANDLE_CHUNK: _Chunk()}
application.handler_kinds["python"] = _python_handler
for _context in application.settings.contexts.values():
    for _subscription in _context.subscriptions.values():
        # Load now, so that a worker with an unusable handler does not start.
        if _subscription.python_module is not None:
            load(_subscription.python_module)
