"""The consuming actors, loaded by ``relay.actors``. Arguments are names and ids, never content."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final
from uuid import UUID

from consumer import wiring
from relay import jobs
from relay.domain.errors import Outage
from relay.domain.facts import MessagesReEnqueued
from relay.worker import (
    OUTAGE_RETRIES,
    actor,
    application,
    broker,
    long_running,
    on_loop,
    periodic,
    row_actor,
    try_again,
)

#: How many seconds a pull job runs before it ends, so that another worker can take the next slice.
_SLICE_S: Final = 60.0
_SWEEP_MAX_ROWS: Final = 1_000
_PAGE_ROWS: Final = 1_000


@row_actor(jobs.HANDLE_MESSAGE, jobs.HANDLE_QUEUE, priority=10)
def handle_message(context: str, subscription: str, message_id: str) -> None:
    """Handle one inbox message by a plain function, in this thread (CMD-051)."""
    # In an outage the row keeps its claim until the lease is over; the sweep brings it back.
    with suppress(Outage):
        try_again(wiring.in_thread(context, subscription).run(UUID(message_id)))


@on_loop(jobs.HANDLE_MESSAGE, unless=wiring.calls_plain_functions)
async def handle_message_on_loop(context: str, subscription: str, message_id: str) -> None:
    """Handle one inbox message by a service or a coroutine, which the event loop calls (CMD-051)."""
    with suppress(Outage):
        try_again(await wiring.messages(context, subscription).run(UUID(message_id)))


@row_actor(jobs.HANDLE_CHUNK, jobs.HANDLE_QUEUE, priority=10)
async def handle_chunk(context: str, subscription: str, message_ids: list[str]) -> None:
    """Handle many inbox messages at once, by any kind of handler. Those to retry are enqueued one by one."""
    with suppress(Outage):
        later = await wiring.chunks(context, subscription).run([UUID(id) for id in message_ids])
        await wiring.enqueue_later(context, subscription, later)


@actor(jobs.PULL, priority=0, **OUTAGE_RETRIES)
async def pull_messages(context: str, subscription: str, token: str) -> None:
    """Pull one subscription into the inbox until its time is over. The scheduler then sends another job."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _SLICE_S
    async with long_running(jobs.PULL.of(context, subscription), token) as ours:
        if ours:
            await wiring.pull(context, subscription).run(
                lambda: bool(ours) and not application.stopping and loop.time() < end
            )


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
        ids = await application.inbox(context, subscription).overdue(subscription, _SWEEP_MAX_ROWS, waited)
        if ids:
            await wiring.enqueue(context, subscription)(ids)
            application.facts(MessagesReEnqueued(context=context, subscription=subscription, count=len(ids)))


@actor(jobs.KEEP_IN_PROGRESS, priority=5, max_retries=0)
async def keep_in_progress(context: str, subscription: str, token: str) -> None:
    """Send +WPI for every message that waits or runs, so that JetStream does not deliver it again."""
    async with periodic(jobs.KEEP_IN_PROGRESS.of(context, subscription), token) as ours:
        if ours and not wiring.on_receipt(context, subscription):
            consumer, inbox = application.consumer(context, subscription), application.inbox(context, subscription)
            # +WPI would undo the delay of a NAK.
            due = wiring.gives_back(context, subscription)
            async for replies in inbox.waiting(subscription, _PAGE_ROWS, due=due):
                await consumer.in_progress(replies)


@actor(jobs.RESCUE_EXHAUSTED, priority=5, max_retries=0)
async def rescue_exhausted(context: str, subscription: str, token: str) -> None:
    """Take messages into the inbox that JetStream has stopped delivering (max_deliver)."""
    async with periodic(jobs.RESCUE_EXHAUSTED.of(context, subscription), token) as ours:
        if ours:
            await wiring.gaps(context, subscription).rescue(wiring.advisories(context, subscription))


@actor(jobs.RECOVER_DELIVERIES, priority=5, max_retries=0)
async def recover_deliveries(context: str, subscription: str, token: str) -> None:
    """Take messages into the inbox that were delivered to a worker which died before it stored them."""
    async with periodic(jobs.RECOVER_DELIVERIES.of(context, subscription), token) as ours:
        if ours:
            await wiring.gaps(context, subscription).recover()


@actor(jobs.RECORD_DEAD_LETTERS, priority=5, max_retries=0)
async def record_dead_letters(context: str, token: str) -> None:
    """Record new messages of the context's DLQ stream as incidents, and send an alert if one is due."""
    async with periodic(jobs.RECORD_DEAD_LETTERS.of(context), token) as ours:
        if not ours:
            return
        await wiring.record(context).run()
        if (alerts := wiring.alerts(context)) is not None:
            await alerts.run()


@actor(jobs.RECONCILE_INBOX, priority=5, max_retries=0)
async def reconcile_inbox(context: str, subscription: str, page: int | None, token: str) -> None:
    """Fetch what JetStream has finished but the inbox does not hold; ``page`` None compares everything."""
    async with periodic(jobs.RECONCILE_INBOX.of(context, subscription), token) as ours:
        if ours:
            find = application.find_missing(context, subscription)
            await wiring.gaps(context, subscription).reconcile(find, page)
