"""Keeping a claim while its call is under way, and ending the call in time when the claim cannot be kept.

A claim is a lease on the database's clock. If a process cannot renew the claim, it cannot see the lease end. So
the process counts each lease by its own clock, from the moment before it requested the claim. It ends a call a
little before the lease ends.

A call on the event loop is cancelled (`renewing`). A plain function runs in the thread that took its message: a
hop to another thread and back often costs more than the function itself. Meanwhile the loop renews the claim
(`Watchdog`). Nothing can stop a plain function when its time is up. Then the loop settles its row, and another
thread takes the place of its thread. The token fences only what the function writes in its transaction.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from relay.concurrency import LoopThread, is_cancelled
from relay.domain.errors import LeaseOver, Outage

Result = TypeVar("Result")

#: How many times a claim is renewed within one lease.
_RENEWALS_PER_LEASE: Final = 4
#: A call ends when one eighth of its lease is left, because cancelling it takes a moment.
_MARGIN_PART: Final = 8
#: How often the loop looks at the calls, in seconds. A time limit is as exact as this.
_LOOK_INTERVAL_S: Final = 0.05
#: After so many looks without a call, the loop stops looking.
_IDLE_LOOKS: Final = 100


def left(lease: timedelta, since: float) -> float:
    """For how many seconds a call may go on.

    ``since``: the value of `time.monotonic` before the claim was requested.
    """
    return since + lease.total_seconds() * (1 - 1 / _MARGIN_PART) - time.monotonic()


@asynccontextmanager
async def renewing(lease: timedelta, since: float, renew: Callable[[], Awaitable[bool]]) -> AsyncIterator[None]:
    """Renew a claim while the block runs; ``renew`` says whether it is still ours.

    The block is cancelled when the claim is lost, or when its lease is about to end. It does not begin when the
    lease is over already. Raises LeaseOver in all these cases; then nothing may be recorded.
    """
    loop, every = asyncio.get_running_loop(), lease.total_seconds() / _RENEWALS_PER_LEASE
    clock, keeper = asyncio.timeout(None), list[asyncio.Task[None]]()

    async def keep() -> None:
        while not is_cancelled():
            requested, ours = time.monotonic(), True
            with suppress(Outage):
                ours = await renew()
                if is_cancelled() or clock.expired():
                    return
                clock.reschedule(loop.time() + (left(lease, requested) if ours else 0.0))
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


class TimeUp(Exception):
    """The time was up before the function returned."""


@dataclass(eq=False, slots=True)
class Attended:
    """A call to attend. Both coroutines run on the event loop. They raise only Outage, which is ignored.

    ``since``: when its claim was requested, by `time.monotonic`. ``seconds``: its time limit. ``renew`` extends
    the claim, repeatedly; if the claim is lost, the token fences what the function writes. ``give_up`` settles the
    row when the time is up.
    """

    lease: timedelta
    since: float
    seconds: float
    renew: Callable[[], Coroutine[Any, Any, bool]]
    give_up: Callable[[], Coroutine[Any, Any, None]]
    end: float = 0.0
    thread: threading.Thread | None = None
    keeper: asyncio.Task[None] | None = None


class Watchdog:
    """Attends the calls of a process; ``replace_thread`` replaces a thread whose function takes too long."""

    def __init__(self, loop: LoopThread, replace_thread: Callable[[threading.Thread], Any]) -> None:
        self._loop = loop.loop
        self._replace_thread = replace_thread
        self._calls: set[Attended] = set()
        self._lock = threading.Lock()
        self._looking = False
        self._idle = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, function: Callable[[], Result], attended: Attended) -> Result:
        """Call a function in this thread. Raises what it raises.

        Raises TimeUp when its time was up before it returned, and LeaseOver if it must not begin.
        """
        if left(attended.lease, attended.since) <= 0:
            raise LeaseOver("the claim was over before the call began")
        attended.end, attended.thread = time.monotonic() + attended.seconds, threading.current_thread()
        with self._lock:
            self._calls.add(attended)
            begin, self._looking = not self._looking, True
        if begin:
            self._loop.call_soon_threadsafe(self._look)
        try:
            return contextvars.copy_context().run(function)
        finally:
            ours = self._withdraw(attended)
            if attended.keeper is not None:
                self._loop.call_soon_threadsafe(attended.keeper.cancel)
            if not ours:
                raise TimeUp

    def _withdraw(self, call: Attended) -> bool:
        """Stop attending a call. Only one caller gets it: its thread, or the loop when the time is up."""
        with self._lock:
            ours = call in self._calls
            self._calls.discard(call)
            return ours

    # --- on the loop ---

    def _look(self) -> None:
        with self._lock:
            calls = list(self._calls)
            self._idle = 0 if calls else self._idle + 1
            self._looking = self._idle < _IDLE_LOOKS
        now = time.monotonic()
        for call in calls:
            if now >= call.end:
                self._overdue(call)
            elif call.keeper is None:
                # Most calls end before the first look. They cost nothing here.
                self._begin_to_keep(call)
        if self._looking:
            self._loop.call_later(_LOOK_INTERVAL_S, self._look)

    def _begin_to_keep(self, call: Attended) -> None:
        with self._lock:
            # Its thread looks for the keeper once it has withdrawn the call.
            if call in self._calls:
                call.keeper = self._spawn(self._keep(call))

    def _overdue(self, call: Attended) -> None:
        if self._withdraw(call):
            assert call.thread is not None
            self._replace_thread(call.thread)
            if call.keeper is not None:
                call.keeper.cancel()
            self._spawn(_attempt(call.give_up()))

    async def _keep(self, call: Attended) -> None:
        """Renew a claim until its call is over. If that fails, nobody can stop the function: see ``renew``."""
        with suppress(Outage):
            async with renewing(call.lease, call.since, call.renew):
                await asyncio.get_running_loop().create_future()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _attempt(work: Coroutine[Any, Any, None]) -> None:
    with suppress(Outage):
        await work
