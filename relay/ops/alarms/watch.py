"""One evaluation of all rules for everybody who looks, at most every few seconds."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from relay.adapters.postgres.pool import Source
from relay.bus import Query
from relay.commands.lag import CONTEXTS_AT_ONCE
from relay.domain.alarm_rules import RULES
from relay.domain.alarms import Alarm, AlarmKey, AlarmsNow, PausedPart, Reading, Trend, judge, trend
from relay.domain.errors import DatabaseUnreachable, RelayError
from relay.domain.standstill import Movement
from relay.ops.alarms.reading import ContextRead, ContextReader, servers, unreachable, unread
from relay.settings import ContextSettings, Settings

#: Lends the database of a context. Raises DatabaseUnreachable.
Sources: TypeAlias = Callable[[ContextSettings], AbstractAsyncContextManager[Source]]


class ReadAlarms(Query[AlarmsNow]):
    """Which rules hold now, of one ``context`` or of all, the worst first."""

    context: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits:
    """How often and how long servers are asked, and for how long values are compared, in seconds."""

    fresh_s: float = 5.0
    patience_s: float = 6.0
    trend_s: float = 300.0
    #: So many contexts are read at once.
    at_once: int = CONTEXTS_AT_ONCE
    #: Values are compared if there is at least so much time between them.
    apart_s: float = 20.0


_LIMITS: Final = WatchLimits()


class Watch:
    """Evaluates the rules, and remembers since when each of them has held.

    ``once``: there will be no second look, so a rule whose beginning nobody knows counts as lasting. ``shared``:
    ask the servers that all contexts share, too.
    """

    def __init__(
        self,
        settings: Settings,
        sources: Sources,
        *,
        once: bool = False,
        shared: bool = True,
        limits: WatchLimits = _LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._sources = settings, sources
        self._once, self._shared, self._limits, self._clock = once, shared, limits, clock
        self._lock, self._room = asyncio.Lock(), asyncio.Semaphore(limits.at_once)
        self._last: tuple[float, AlarmsNow] | None = None
        self._since: Mapping[AlarmKey, datetime] = {}
        self._values: dict[AlarmKey, deque[tuple[float, float]]] = {}
        self._still: dict[str, Sequence[Movement]] = {}
        self._read_at: dict[str, float] = dict.fromkeys(settings.contexts, clock())

    async def answer(self, query: ReadAlarms) -> AlarmsNow:
        """Answer a query from the last look."""
        found = await self.look()
        if query.context is None:
            return found
        mine = {"", query.context}
        return replace(
            found,
            alarms=[it for it in found.alarms if it.context in mine],
            unread={name: why for name, why in found.unread.items() if name in mine},
        )

    async def look(self) -> AlarmsNow:
        """Return the alarms of a few seconds ago at most. Callers meanwhile wait for the same look."""
        async with self._lock:
            if self._last is None or self._clock() - self._last[0] >= self._limits.fresh_s:
                begin = self._clock()
                self._last = begin, await self._evaluate()
            return self._last[1]

    async def _evaluate(self) -> AlarmsNow:
        at = datetime.now(UTC)
        names = [*self._settings.contexts]
        shared = asyncio.create_task(self._servers())
        found = dict(zip(names, await asyncio.gather(*map(self._context, names)), strict=True))
        readings: list[Reading] = [unreachable(it) for it in await shared]
        known: dict[AlarmKey, tuple[datetime, float | None]] = {}
        paused: list[PausedPart] = []
        why: dict[str, str] = {}
        for name, read in found.items():
            if isinstance(read, ContextRead):
                readings += read.readings
                known |= read.known
                paused += read.paused
            else:
                why[name] = read
                silent = timedelta(seconds=self._clock() - self._read_at[name])
                readings += [unreachable(DatabaseUnreachable.server, name, read), unread(name, silent)]
        alarms = self._judged(readings, known, paused, at)
        return AlarmsNow(at=at, alarms=alarms, unread=why)

    def _judged(
        self,
        readings: Sequence[Reading],
        known: Mapping[AlarmKey, tuple[datetime, float | None]],
        paused: Sequence[PausedPart],
        at: datetime,
    ) -> Sequence[Alarm]:
        if self._once:
            readings = [self._lasting(it) if it.key not in known else it for it in readings]
        began = {key: since for key, (since, _) in known.items()}
        for key, since in self._since.items():
            began[key] = min(since, began.get(key, since))
        alarms = judge(RULES, readings, began, at, paused)
        keys = {it.key for it in readings}
        self._since = {_key(it): it.since for it in alarms}
        self._values = {key: values for key, values in self._values.items() if key in keys}
        return [replace(it, trend=self._trend(it, known)) for it in alarms]

    def _lasting(self, reading: Reading) -> Reading:
        lasting = RULES[reading.rule].lasting.total_seconds()
        return reading if reading.since is not None else replace(reading, since=lasting)

    def _trend(self, alarm: Alarm, known: Mapping[AlarmKey, tuple[datetime, float | None]]) -> Trend | None:
        """How the value has changed: since a look before, else since that of the scheduler."""
        key, now = _key(alarm), self._clock()
        values = self._values.setdefault(key, deque())
        while values and now - values[0][0] > self._limits.trend_s:
            values.popleft()
        old = values and now - values[0][0] >= self._limits.apart_s
        before = values[0][1] if old else known[key][1] if key in known else None
        values.append((now, alarm.value))
        return None if before is None else trend(before, alarm.value)

    async def _context(self, name: str) -> ContextRead | str:
        """Read a context; or why it cannot be read."""
        context = self._settings.contexts[name]
        before = None if self._once else self._still.get(name)
        try:
            async with self._room, asyncio.timeout(self._limits.patience_s), self._sources(context) as source:
                read = await ContextReader(context, self._settings.health.stalled_after).read(source, before)
        except TimeoutError:
            return f"no answer within {self._limits.patience_s:g} s"
        except RelayError as error:
            return error.message
        self._still[name] = read.still
        self._read_at[name] = self._clock()
        return read

    async def _servers(self) -> Sequence[str]:
        if not self._shared:
            return ()
        return [*await servers(self._settings, self._limits.patience_s)]


def _key(alarm: Alarm) -> AlarmKey:
    return alarm.rule.name, tuple(alarm.labels.items())
