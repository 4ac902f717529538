"""The consuming actors, loaded by ``relay.actors``. Arguments are names and ids, never content."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final
from uuid import UUID

from consumer import upkeep, wiring
from relay import jobs
from relay.domain.errors import Outage
from relay.worker import (
    OUTAGE_RETRIES,
    actor,
    application,
    long_running,
    on_loop,
    periodic,
    row_actor,
    try_again,
)

#: How many seconds a pull job runs before it ends, so that another worker can take the next slice.
_SLICE_S: Final = 60.0


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
        await wiring.enqueue_later(context, subscription, later or {})


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


@actor(jobs.LOOK_AFTER, priority=5, max_retries=0)
async def look_after(context: str, token: str, unfinished: list[str] | None = None) -> None:
    """Do what a context's subscriptions need now: sweep, recover, rescue, keep, record, compare.

    ``unfinished``: subscriptions that had unfinished messages when the job was sent; None if not known. The others
    need no sweep.
    """
    work = None
    async with periodic(jobs.LOOK_AFTER.of(context), token) as ours:
        if ours:
            work = await upkeep.begin(context, unfinished)
            await work.patiently()
    if work is not None:
        await work.end()


@actor(jobs.RECONCILE_INBOX, priority=5, max_retries=0)
async def reconcile_inbox(context: str, subscription: str, page: int | None, token: str) -> None:
    """Fetch what JetStream has finished but the inbox does not hold, for an operator (`relay reconcile`)."""
    async with periodic(jobs.RECONCILE_INBOX.of(context, subscription), token) as ours:
        if ours:
            await upkeep.reconcile_inbox(context, subscription, page)
