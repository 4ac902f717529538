"""Keeping a claim while its call is under way, and ending the call in time when the claim cannot be kept.

A claim is a lease on the database's clock. A process that cannot renew it does not see it end. So each lease
counts from the moment before it was asked for, by the clock of this process, and a call ends a little before the
lease. A function in a thread cannot be ended. The token fences only what it writes in its transaction.
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

#: How many times a claim is renewed within one lease.
_OFTEN: Final = 4
#: A call ends when this part of its lease is left, one eighth: cancelling it takes a moment.
_MARGIN: Final = 8


def left(lease: timedelta, since: float) -> float:
    """For how many seconds a call may go on.

    ``since``: the value of `time.monotonic` before the claim was asked for.
    """
    return since + lease.total_seconds() * (1 - 1 / _MARGIN) - time.monotonic()


@asynccontextmanager
async def renewing(lease: timedelta, since: float, renew: Callable[[], Awaitable[bool]]) -> AsyncIterator[None]:
    """Renew a claim while the block runs; ``renew`` says whether it is still ours.

    The block is cancelled when the claim is lost, or when its lease is about to end. It does not begin when the
    lease is over already. Raises LeaseOver in all these cases; then nothing may be recorded.
    """
    loop, every = asyncio.get_running_loop(), lease.total_seconds() / _OFTEN
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
    # Most blocks end before the first renewal. They cost only this timer.
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
