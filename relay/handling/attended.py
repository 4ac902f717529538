"""One call of a plain function in the thread that took its row, while the event loop renews the claim."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from relay.adapters.postgres.handling import Claimed
from relay.bus import RequestContext
from relay.domain.errors import LeaseOver, Outage
from relay.domain.model import HandlerResult
from relay.handling.calls import Call, answer
from relay.handling.watch import Watch
from relay.leases import OFTEN, left
from relay.threads import LoopThread


@dataclass(frozen=True, slots=True)
class Attendance:
    """What happens to a row while its function runs. Both coroutines run on the event loop; an outage is ignored.

    ``since``: when the claim was asked for, by `time.monotonic`. ``renew`` extends the claim, repeatedly. The call
    does not wait for its result: if the claim is lost, the token fences our writes. ``give_up`` settles the row
    when the time is up, after ``seconds``, so that it is retried.
    """

    lease: timedelta
    since: float
    seconds: float
    renew: Callable[[], Coroutine[Any, Any, object]]
    give_up: Callable[[], Coroutine[Any, Any, None]]


class Attended:
    """Calls plain functions; ``relieve`` replaces a thread whose function takes too long by a new one."""

    def __init__(self, loop: LoopThread, relieve: Callable[[threading.Thread], Any]) -> None:
        self._loop = loop
        self._relieve = relieve
        self._watch = Watch()

    def call(self, call: Call, context: RequestContext, taken: Claimed, attendance: Attendance) -> HandlerResult:
        """Call a function in this thread. Raises Overdue when its time is up, LeaseOver if it must not begin."""
        if left(attendance.lease, attendance.since) <= 0:
            raise LeaseOver("the claim was over before the call began")

        def answered() -> HandlerResult:
            try:
                with context.use():
                    return call.run_in_thread(taken)
            except BaseException as error:
                return answer(error)

        thread = threading.current_thread()

        def overdue() -> None:
            self._relieve(thread)
            self._on_loop(attendance.give_up())

        def renew() -> None:
            self._on_loop(attendance.renew())

        every = attendance.lease.total_seconds() / OFTEN
        return self._watch.call(answered, attendance.seconds, every, renew, overdue)

    def _on_loop(self, work: Coroutine[Any, Any, object]) -> None:
        async def attempt() -> None:
            with suppress(Outage):
                await work

        asyncio.run_coroutine_threadsafe(attempt(), self._loop.loop)
