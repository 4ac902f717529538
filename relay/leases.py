"""Keeping a claim while its call is under way, and ending the call in time where the claim cannot be kept.

A claim is a lease on the database's clock. Who cannot renew it does not see it end; so each renewal counts from
before it was asked for, by the clock of this process, and a call ends a little before the lease can. A function in
a thread cannot be ended: of what it does, the token only keeps from happening what it writes in its transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final

from relay.cancellation import is_cancelled
from relay.domain.errors import LeaseOver, Outage

#: So often is a claim renewed while its lease lasts.
OFTEN: Final = 4
#: The part of a lease that is left when a call ends: the loop, and a service that is hung up on, take a moment.
_MARGIN: Final = 8


def left(lease: timedelta, since: float) -> float:
    """For how many seconds a call may go on.

    ``since``: what `time.monotonic` said before the claim was asked for.
    """
    return since + lease.total_seconds() * (1 - 1 / _MARGIN) - time.monotonic()


@asynccontextmanager
async def kept(lease: timedelta, since: float, renew: Callable[[], Awaitable[bool]]) -> AsyncIterator[None]:
    """Renew a claim while the block runs; ``renew`` says whether it is still ours.

    Raises LeaseOver: the block is cancelled when the claim is lost, or may be another's in a moment, and does not
    even begin when that is so. Nothing may be recorded then.
    """
    loop, every = asyncio.get_running_loop(), lease.total_seconds() / OFTEN
    clock, keeper = asyncio.timeout(None), list[asyncio.Task[None]]()

    async def keep() -> None:
        while not is_cancelled():
            asked, ours = time.monotonic(), True
            with suppress(Outage):
                ours = await renew()
                if is_cancelled() or clock.expired():
                    return
                clock.reschedule(loop.time() + (left(lease, asked) if ours else 0.0))
            if not ours:
                return
            await asyncio.sleep(every)

    def begin() -> None:
        clock.reschedule(loop.time() + left(lease, since))
        keeper.append(loop.create_task(keep()))

    remaining = left(lease, since)
    if remaining <= 0:
        raise LeaseOver("the claim was over before the call began")
    # Most blocks end long before; for those a timer is all it takes.
    timer = loop.call_later(min(every, remaining), begin)
    try:
        async with clock:
            yield
    except TimeoutError:
        if clock.expired():
            raise LeaseOver("the claim could not be renewed, so the call was cancelled") from None
        raise
    finally:
        timer.cancel()
        for task in keeper:
            task.cancel()
