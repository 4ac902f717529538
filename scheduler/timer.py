"""When ticks fire: APScheduler fires each interval once, for all ticks of this interval in all contexts.

A tick costs little, a wake-up of APScheduler much: it looks through its jobs and sets its timer. So intervals are
counted from a full second, and ticks share instants. With a job for each tick of each context, 50 idle contexts
took 18.8 % of a core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from apscheduler.job import Job
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.interval import IntervalTrigger

Fire = Callable[[], None]

#: From this interval on, the ticks of several contexts come one after the other.
_SPREAD_FROM: Final = timedelta(seconds=10)
#: The longest pause between two of them, in seconds.
_PAUSE_S: Final = 1.0
#: The pause between their first calls, in seconds: a fleet that starts has more urgent work.
_FIRST_PAUSE_S: Final = 0.2


def utc_now() -> datetime:
    """The time by the machine's clock."""
    return datetime.now(UTC)


@dataclass(slots=True)
class _Interval:
    job: Job
    members: dict[Fire, None] = field(default_factory=dict)
    #: When the next member may be called for the first time, on the clock of the event loop.
    next_first: float = 0.0


class IntervalTimer:
    """Calls functions at fixed intervals, on the event loop. All intervals begin at a full second.

    So the ticks of all contexts share APScheduler's wake-ups and bookkeeping, which cost most. Rare ticks spread
    over half of their interval, and their first ones over seconds. Otherwise the jobs of all contexts would start
    at the same moment, on as many connections.
    """

    def __init__(
        self,
        engine: AsyncIOScheduler,
        *,
        now: Callable[[], datetime] = utc_now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``now``: the machine's clock. ``sleep``: a pause between the ticks of several contexts."""
        self._engine: Final = engine
        self.now, self._sleep = now, sleep
        self._intervals: dict[timedelta, _Interval] = {}

    def add(self, every: timedelta, fire: Fire) -> None:
        """Call ``fire`` from the next instant of the interval on. A late instant replaces all missed ones."""
        if every not in self._intervals:
            self._intervals[every] = _Interval(self._begin(every))
        self._intervals[every].members[fire] = None

    def begin(self, every: timedelta, fire: Fire) -> None:
        """Call ``fire`` out of turn: now, or soon if it is rare and others have just begun."""
        if every < _SPREAD_FROM:
            fire()
            return
        loop, interval = asyncio.get_running_loop(), self._intervals[every]
        when = max(loop.time(), interval.next_first)
        interval.next_first = when + _FIRST_PAUSE_S
        loop.call_at(when, self._call, every, fire)

    def _call(self, every: timedelta, fire: Fire) -> None:
        interval = self._intervals.get(every)
        if interval is not None and fire in interval.members:
            fire()

    def remove(self, every: timedelta, fire: Fire) -> None:
        """Stop calling ``fire``."""
        interval = self._intervals[every]
        del interval.members[fire]
        if not interval.members:
            interval.job.remove()
            del self._intervals[every]

    def next(self, every: timedelta) -> datetime | None:
        """Return the next instant of an interval; None if nothing is to be called then."""
        interval = self._intervals.get(every)
        following: datetime | None = None if interval is None else interval.job.next_run_time
        return following

    def begin_anew(self) -> None:
        """Count from now. After the machine's clock was set back, APScheduler would wait for the old time."""
        for every, interval in self._intervals.items():
            interval.job = self._begin(every)

    def _begin(self, every: timedelta) -> Job:
        start = self.now().replace(microsecond=0)
        return self._engine.add_job(
            self._fire,
            IntervalTrigger(seconds=every.total_seconds(), start_date=start, timezone=UTC),
            args=(every,),
            id=f"every {every.total_seconds():g} s",
            misfire_grace_time=None,
            coalesce=True,
            replace_existing=True,
        )

    async def _fire(self, every: timedelta) -> None:
        interval = self._intervals.get(every)
        members = {} if interval is None else interval.members
        pause = min(_PAUSE_S, every.total_seconds() / 2 / max(1, len(members)))
        for number, fire in enumerate(list(members)):
            if number and every >= _SPREAD_FROM:
                await self._sleep(pause)
            if fire in members:
                fire()
