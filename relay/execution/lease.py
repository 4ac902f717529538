"""Keeping a claim while its call is under way, and ending the call in time when the claim cannot be kept.

A claim is a lease on the database's clock. If a process cannot renew the claim, it cannot see the lease end. So
the process counts each lease by its own clock, from the moment before it requested the claim. It ends a call a
little before the lease ends.

One `Watchdog` attends both kinds of calls. A call on the event loop is cancelled. A plain function runs in the
thread that took its message: a hop to another thread and back often costs more than the function itself. Nothing
can stop it when its time is up. Then the loop settles its row, and another thread takes the place of its thread.
The token fences only what the function writes in its transaction.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

from relay.domain.errors import LeaseOver, Outage

Result = TypeVar("Result")

#: How many times a claim is renewed within one lease.
_RENEWALS_PER_LEASE: Final = 4
#: A call ends when one eighth of its lease is left, because cancelling it takes a moment.
_MARGIN_PART: Final = 8
#: The shortest pause between two looks at the calls, in seconds. A time limit is as exact as this.
_LOOK_INTERVAL_S: Final = 0.05


class TimeUp(Exception):
    """The time was up before the function returned."""


@dataclass(eq=False, slots=True)
class Attended:
    """A call to attend, whose claim was requested at ``since``, by `time.monotonic`.

    ``renew`` extends the claim, repeatedly; False if it is lost. ``over`` ends the call when its claim is lost, or
    when its lease is about to end. Without it the call goes on, and the token fences what it writes. ``late`` is
    awaited when the call has lasted for ``seconds``. All run on the event loop. The coroutines raise only Outage,
    which is ignored.
    """

    lease: timedelta
    since: float
    renew: Callable[[], Awaitable[bool]]
    over: Callable[[], None] | None = None
    seconds: float = math.inf
    late: Callable[[], Coroutine[Any, Any, None]] | None = None
    #: When its time is up, when its claim must have been renewed, and when that is due.
    end: float = field(init=False, default=math.inf)
    until: float = field(init=False)
    renewal: float = field(init=False)
    renewing: asyncio.Task[None] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.granted(self.since)
        self.renewal = self.since + self.every

    def begin(self) -> None:
        """Let its time begin. Raises LeaseOver if the call must not begin."""
        now = time.monotonic()
        if now >= self.until:
            raise LeaseOver("the claim was over before the call began")
        self.end = now + self.seconds

    def granted(self, requested: float) -> None:
        """Note that the claim was granted. That may have been as soon as it was ``requested``."""
        self.until = requested + self.lease.total_seconds() * (1 - 1 / _MARGIN_PART)

    @property
    def every(self) -> float:
        """How often the claim is renewed, in seconds."""
        return self.lease.total_seconds() / _RENEWALS_PER_LEASE

    @property
    def due(self) -> float:
        """When the loop must look at it."""
        return min(self.end, self.until, self.renewal)


class Watchdog:
    """Attends the calls of a process: renews their claims, and acts when a claim or the time of a call is over.

    ``loop``: by default the one of the first call that is `kept`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._calls: set[Attended] = set()
        self._lock = threading.Lock()
        #: When the loop looks at the calls. Most calls end before that: they cost nothing there.
        self._next = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, function: Callable[[], Result], attended: Attended) -> Result:
        """Call a function in this thread. Raises what it raises.

        Raises TimeUp when its time was up before it returned, and LeaseOver if it must not begin.
        """
        assert self._loop is not None
        attended.begin()
        if self._add(attended):
            self._loop.call_soon_threadsafe(self._look)
        try:
            return contextvars.copy_context().run(function)
        finally:
            ours = self._withdraw(attended)
            if attended.renewing is not None:
                self._loop.call_soon_threadsafe(attended.renewing.cancel)
            if not ours:
                raise TimeUp

    @asynccontextmanager
    async def kept(
        self, lease: timedelta, since: float, renew: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[None]:
        """Renew a claim while the block runs, on the event loop.

        The block is cancelled when the claim is lost, or when its lease is about to end. It does not begin when
        the lease is over already. Raises LeaseOver in all these cases; then nothing may be recorded.
        """
        loop = self._loop = asyncio.get_running_loop()
        clock = asyncio.timeout(None)
        call = Attended(lease, since, renew, over=lambda: clock.reschedule(loop.time()))
        call.begin()
        try:
            async with clock:
                if self._add(call):
                    self._look()
                yield
        except TimeoutError:
            if clock.expired():
                raise LeaseOver("the claim could not be renewed, so the call was cancelled") from None
            raise
        finally:
            self._withdraw(call)
            if call.renewing is not None:
                call.renewing.cancel()

    def _add(self, call: Attended) -> bool:
        """Attend a call; returns whether the loop must look earlier than it would."""
        with self._lock:
            self._calls.add(call)
            if earlier := call.due < self._next:
                self._next = call.due
            return earlier

    def _withdraw(self, call: Attended) -> bool:
        """Stop attending a call. Only one caller gets it: who has called it, or the loop when it is over."""
        with self._lock:
            ours = call in self._calls
            self._calls.discard(call)
            return ours

    # --- on the loop ---

    def _look(self) -> None:
        with self._lock:
            calls = list(self._calls)
        now = time.monotonic()
        for call in calls:
            if now >= call.end:
                self._end(call)
            elif now >= call.until:
                self._over(call)
            elif now >= call.renewal:
                self._begin_to_renew(call)
        with self._lock:
            self._next = min((call.due for call in self._calls), default=math.inf)
        if self._timer is not None:
            self._timer.cancel()
        if self._next < math.inf:
            pause = max(_LOOK_INTERVAL_S, self._next - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(pause, self._look)

    def _end(self, call: Attended) -> None:
        if self._withdraw(call):
            if call.renewing is not None:
                call.renewing.cancel()
            assert call.late is not None
            self._spawn(_attempt(call.late()))

    def _over(self, call: Attended) -> None:
        """The claim is not ours any more: nothing renews it."""
        call.until = call.renewal = math.inf
        if call.over is not None and self._withdraw(call):
            call.over()

    def _begin_to_renew(self, call: Attended) -> None:
        call.renewal = math.inf
        with self._lock:
            # Its caller looks for the renewal once it has withdrawn the call.
            if call in self._calls:
                call.renewing = self._spawn(self._renew(call))

    async def _renew(self, call: Attended) -> None:
        requested, ours = time.monotonic(), True
        with suppress(Outage):
            ours = await call.renew()
            if ours:
                call.granted(requested)
        if not ours:
            self._over(call)
            return
        call.renewal = time.monotonic() + call.every
        if call.renewal < self._next:
            self._look()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _attempt(work: Coroutine[Any, Any, None]) -> None:
    with suppress(Outage):
        await work
