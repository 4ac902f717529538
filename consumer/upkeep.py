"""The upkeep of a context's subscriptions, in one job: the routines of `jobs.LOOK_AFTER`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from typing import Final

from consumer import wiring
from consumer.circuit import enqueue_waiting
from consumer.routines import Routine, RoutineSlots, RunRoutines
from relay import jobs
from relay.adapters.postgres.replays import PostgresReplays
from relay.commands.reconcile import EVERY as RECONCILE_EVERY
from relay.domain.facts import MessagesReEnqueued
from relay.worker import application, broker

_RECOVER: Final = timedelta(seconds=3)
#: While a handler is away, a run looks at its circuit so many times, with so many seconds between.
_LOOKS: Final = 6
_LOOK_S: Final = 0.5
_RESCUE: Final = timedelta(seconds=10)
_COMPARE: Final = timedelta(seconds=10)
#: How many routines of a context run at the same time. All are due when a fleet starts.
_MAX_ROUTINES: Final = 8
#: How many routines of all contexts run at the same time.
_MAX_ALL_ROUTINES: Final = 32
#: How many comparisons of a context run at the same time. They read many rows.
_MAX_COMPARISONS: Final = 1
#: How many comparisons of all contexts run at the same time.
_MAX_ALL_COMPARISONS: Final = 4
_SWEEP_MAX_ROWS: Final = 1_000
_PAGE_ROWS: Final = 1_000


@cache
def _shared(size: int) -> asyncio.Semaphore:
    """The slots that all contexts share."""
    return asyncio.Semaphore(size)


@cache
def _slots(_context: str) -> tuple[RoutineSlots, RoutineSlots]:
    """The slots for the routines of a context, and those for its comparisons."""
    return (
        RoutineSlots(_MAX_ROUTINES, _shared(_MAX_ALL_ROUTINES)),
        RoutineSlots(_MAX_COMPARISONS, _shared(_MAX_ALL_COMPARISONS)),
    )


def routines_of(context: str, unfinished: Collection[str] | None) -> Iterator[Routine]:
    """All routines of a context. Subscriptions without ``unfinished`` messages need fewer."""
    settings = application.context(context).settings
    quick, slow = _slots(context)
    swept = [name for name in settings.subscriptions if unfinished is None or name in unfinished]
    yield Routine("tend_circuits", _RECOVER, partial(tend_circuits, context, swept, quick.sleep), quick)
    yield Routine("sweep_inbox", _RECOVER, partial(sweep_all, context, swept), quick)
    yield Routine("record_dead_letters", _RECOVER, partial(record_dead_letters, context), quick)
    yield Routine("compare_incidents", _COMPARE, partial(compare_incidents, context), quick)
    if settings.subscriptions:
        yield Routine("replay_messages", _RECOVER, partial(replay_messages, context, quick.sleep), quick)
    for name, subscription in settings.subscriptions.items():
        if (corrects := wiring.correct(context, name)) is not None:
            yield Routine(f"correct_dead_letters:{name}", _RECOVER, corrects.run, quick)
        keep = keep_in_progress if name in swept else _nothing
        for what, every, run, slots in (
            ("recover_deliveries", _RECOVER, partial(recover_deliveries, sleep=quick.sleep), quick),
            ("keep_in_progress", subscription.ack_wait / 4, keep, quick),
            ("rescue_exhausted", _RESCUE, rescue_exhausted, quick),
            ("reconcile_inbox", RECONCILE_EVERY, reconcile_latest, slow),
        ):
            yield Routine(f"{what}:{name}", every, partial(run, context, name), slots)


async def begin(context: str, unfinished: Collection[str] | None) -> RunRoutines:
    """Begin the routines of a context that are due. Raises QueueUnreachable."""
    duty, every = jobs.LOOK_AFTER.of(context), application.context(context).settings.look_after_every
    work = RunRoutines(
        duty, routines_of(context, unfinished), application.gates, application.facts, lambda: application.stopping
    )
    await work.begin(every)
    return work


# --- the routines. Each raises BrokerUnreachable, DatabaseUnreachable or QueueUnreachable, and may run twice ---


async def tend_circuits(
    context: str, subscriptions: Iterable[str], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Look after the circuits of subscriptions whose handlers are away, until the next run of this.

    What has waited for the end of a pause goes on, too.
    """
    known = application.context(context).settings.subscriptions
    names = [it for it in subscriptions if it in known]
    for _ in range(_LOOKS if names else 0):
        found = [it for it in await wiring.circuits(context).open_ones() if it.subscription in names]
        for each in found:
            if each.resumed:
                await resume(context, each.subscription)
            elif (circuit := wiring.circuit(context, each.subscription)) is not None:
                await circuit.tend(each)
        if not found or application.stopping:
            return
        await sleep(_LOOK_S)


async def replay_messages(context: str, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Carry on the replays that operators have asked for, each for a turn."""
    settings = application.context(context).settings
    replays = PostgresReplays(application.context(context).pool.connection)
    for _ in settings.subscriptions:
        if application.stopping or (found := await replays.take([*settings.subscriptions])) is None:
            return
        work = replace(wiring.replay(context, found.subscription), sleep=sleep)
        await work.run(found, lambda: not application.stopping)


async def resume(context: str, subscription: str) -> None:
    """Enqueue what has waited for the end of a pause. It is noted only then: a crash repeats this."""
    inbox, enqueue = application.inbox(context, subscription), wiring.enqueue(context, subscription)
    await enqueue_waiting(inbox, subscription, enqueue)
    await wiring.circuits(context).released(subscription)


async def sweep_all(context: str, subscriptions: Iterable[str]) -> None:
    """Sweep subscriptions, one after the other."""
    for subscription in subscriptions:
        await sweep_inbox(context, subscription)


async def _nothing(_context: str, _subscription: str) -> None:
    """What a subscription without unfinished messages needs."""


async def sweep_inbox(context: str, subscription: str) -> None:
    """Enqueue again what should be in a queue and is not: Redis was flushed, or a worker died.

    A message that still waits in a long queue is not lost. If it were enqueued again, the queue would grow and
    grow. So the sweep takes only messages that were enqueued before the queue's head. Messages that have failed
    have a share of their own, so they are swept apart: thousands of them hide no message that was never tried.
    """
    inbox = application.inbox(context, subscription)
    for failed in (False, True):
        share = jobs.share(context, subscription, again=failed)
        waited = await asyncio.to_thread(broker.head_waits, jobs.HANDLE_QUEUE, share)
        ids = await inbox.overdue(subscription, _SWEEP_MAX_ROWS, waited, failed=failed)
        if not ids:
            continue
        if failed:
            await wiring.enqueue_later(context, subscription, dict.fromkeys(ids, timedelta()))
        else:
            await wiring.enqueue(context, subscription)(ids)
        application.facts(MessagesReEnqueued(context=context, subscription=subscription, count=len(ids)))


async def keep_in_progress(context: str, subscription: str) -> None:
    """Send +WPI for every message that waits or runs, so that JetStream does not deliver it again."""
    if wiring.on_receipt(context, subscription):
        return
    consumer, inbox = application.consumer(context, subscription), application.inbox(context, subscription)
    # +WPI would undo the delay of a NAK.
    due = wiring.gives_back(context, subscription)
    async for replies in inbox.waiting(subscription, _PAGE_ROWS, due=due):
        await consumer.in_progress(replies)


async def rescue_exhausted(context: str, subscription: str) -> None:
    """Store messages in the inbox that JetStream no longer delivers (max_deliver)."""
    await wiring.recovery(context, subscription).rescue(wiring.advisories(context, subscription))


async def recover_deliveries(
    context: str, subscription: str, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Store messages in the inbox that were delivered to a worker which then died."""
    await wiring.recovery(context, subscription).recover(sleep)


async def record_dead_letters(context: str) -> None:
    """Record new messages of the context's DLQ stream as incidents. The scheduler sends their alerts."""
    await wiring.record(context).run()


async def compare_incidents(context: str) -> None:
    """Record dead messages that have no incident: their letter was lost, or the stream never had it."""
    await application.context(context).record_incidents.compare()


async def reconcile_inbox(context: str, subscription: str, page: int | None) -> None:
    """Fetch what JetStream has finished but the inbox does not hold; ``page`` None compares everything."""
    find = application.find_missing(context, subscription)
    await wiring.recovery(context, subscription).reconcile(find, page)


async def reconcile_latest(context: str, subscription: str) -> None:
    """Compare a page. The clock decides which, so no process has to remember it."""
    await reconcile_inbox(context, subscription, int(time.time() / RECONCILE_EVERY.total_seconds()))
