"""Where a claim begins to look, once the way there has become long.

Published events stay in the index of ready ones for as long as anybody holds a snapshot that is older than their
publication, and a claim would walk through all of them. So while claims are slow, a process finds out up to which
place nothing is left in a lane. Such a floor holds for good: places are given in order, every transaction that
had been given one below it is over, and the events that come back to be published are counted.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from psycopg.errors import QueryCanceled

from relay.adapters.postgres.pool import Connection
from relay.adapters.postgres.sql import statement
from relay.domain.ordering import LANES

#: The lane of the events without a key.
NO_LANE: Final = -1
#: A claim that takes longer may have a long way to go, in seconds, and has if it and those just before it were as
#: slow and took so long together. A busy machine makes a few of them slow as well.
SLOW: Final = 0.025
TOGETHER: Final = 0.25
#: How often it is looked how far everything is decided, in seconds: seldom where that takes the server no longer
#: than _SHORT, as it does where what is published has been removed.
PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.6
_SHORT: Final = 0.005
#: How many places the first step goes, and the shortest and the longest. The next one goes further after one
#: that was quick, in seconds. All places at once might take longer than a statement may, and then ever again.
_STEP: Final = 50_000
_LEAST_STEP: Final = 10_000
_LONGEST_STEP: Final = 2**60
_QUICK: Final = 0.1
_PATIENCE: Final = "SET LOCAL statement_timeout = '500ms'"
#: How long the steps of a look may take together, in seconds.
_LOOK: Final = 1.0
#: For how long floors are raised after claims were slow, in seconds. They hold for longer.
KEEP: Final = 60.0
#: How often the whole way is gone beside the claims, in seconds: an event may have been given a low place by hand.
RENEW: Final = 600.0
#: Below every place.
NONE: Final = -(2**63)

#: How often events were reopened, and since when the server runs without a crash: others have other floors.
Epoch: TypeAlias = tuple[int, datetime]


@dataclass(frozen=True, slots=True)
class _Watch:
    """A moment: the highest place that was given until then, and who may have taken one and was not done."""

    highest: int
    writers: frozenset[str]


class Floors:
    """The floors of the lanes of one database, as far as this process knows them. For one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._next_look = math.inf
        self._pause = PAUSE
        self._until = self._slow = 0.0
        self._begin(None)

    def _begin(self, epoch: Epoch | None) -> None:
        """Forget all floors: claims walk the whole way."""
        self._epoch = epoch
        self._watch: _Watch | None = None
        self._decided = NONE
        self._step = _STEP
        self._floors = _lowest()
        # Floors that are being found; others than those in use while these are renewed.
        self._found = self._floors
        self._renewal = math.inf
        self._far = False

    async def find(self, conn: Connection, lanes: Sequence[int], epoch: Epoch) -> list[int] | None:
        """Where to begin in each of these lanes; None while that is so far that a claim might not get there.

        ``epoch`` was read before, in this transaction, of which each statement has to have a snapshot of its own.
        """
        if epoch != self._epoch:
            self._begin(epoch)
        if self._time_to_look():
            async with self._lock:
                if epoch == self._epoch and self._time_to_look():
                    await self._look(conn, epoch)
        if epoch != self._epoch:
            # Another claim has begun another epoch meanwhile.
            return [NONE] * len(lanes)
        return None if self._far else [self._floors[lane] for lane in lanes]

    def note(self, seconds: float) -> None:
        """Take notice of how long a claim has taken."""
        self._slow = self._slow + seconds if seconds > SLOW else 0.0
        if self._slow > TOGETHER:
            now = time.monotonic()
            self._until = now + KEEP
            if self._next_look == math.inf:
                self._next_look, self._pause = now, PAUSE

    def _time_to_look(self) -> bool:
        return time.monotonic() >= min(self._next_look, self._renewal)

    async def _look(self, conn: Connection, epoch: Epoch) -> None:
        """Raise the floors as far as everything is decided."""
        now = await _watch(conn)
        if epoch != self._epoch:
            return
        before = self._watch or now
        vain = not before.writers.isdisjoint(now.writers)
        self._watch = before if vain else now
        if not vain:
            # Whoever begins to write after that is given a higher place.
            self._decided = before.highest if now.writers else now.highest
        if self._decided > NONE:
            await self._raise(conn, epoch)
        done = time.monotonic()
        if self._far:
            self._next_look = done
        elif done < self._until or self._renewing:
            self._next_look = done + self._pause
        else:
            self._next_look = math.inf

    @property
    def _renewing(self) -> bool:
        return self._found is not self._floors

    async def _raise(self, conn: Connection, epoch: Epoch) -> None:
        begun = time.monotonic()
        if begun >= self._renewal:
            self._found, self._renewal, self._step = _lowest(), math.inf, _STEP
        # Claims do without renewed floors, so these are looked for a step at a time.
        end = begun + (0.0 if self._renewing else _LOOK)
        there = moved = False
        while not there and epoch == self._epoch:
            found = await self._go(conn)
            if found is not None and epoch == self._epoch:
                moved, there = True, found
            if time.monotonic() >= end:
                break
        # Where not even a step succeeds, claims try by themselves.
        self._far = moved and not there and not self._renewing

    async def _go(self, conn: Connection) -> bool | None:
        """Go a step in each lane; returns whether that led as far as can be, None when it took too long."""
        epoch, held = self._epoch, {"lanes": [*self._found], "floors": [*self._found.values()]}
        try:
            rows = await _raised(conn, held | {"step": self._step, "decided": self._decided})
        except QueryCanceled:
            self._step = max(self._step // 8, _LEAST_STEP)
            return None
        there, seconds = all(done for _, _, done, _ in rows), rows[-1][-1]
        if not there and seconds < _QUICK:
            self._step = min(2 * self._step, _LONGEST_STEP)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE) if seconds < _SHORT else max(self._pause / 2, PAUSE)
        if epoch == self._epoch:
            self._settle({lane: floor for lane, floor, *_ in rows}, there)
        return there

    def _settle(self, found: Mapping[int, int], there: bool) -> None:
        """Take what a step has found for floors."""
        if there and self._renewal == math.inf:
            self._renewal = time.monotonic() + RENEW
        if there or not self._renewing:
            self._floors = self._found = found
        else:
            self._floors = {lane: max(floor, found[lane]) for lane, floor in self._floors.items()}
            self._found = found


def _lowest() -> Mapping[int, int]:
    return dict.fromkeys((*range(LANES), NO_LANE), NONE)


async def _raised(conn: Connection, terms: Mapping[str, Any]) -> Sequence[tuple[int, int, bool, float]]:
    async with conn.transaction(force_rollback=True):
        await conn.execute(_PATIENCE)
        return await (await conn.execute(statement("outbox_floors"), terms)).fetchall()


async def _watch(conn: Connection) -> _Watch:
    # In this order: whoever is given a place up to the highest is among the writers, or done.
    [[highest]] = await (await conn.execute(statement("outbox_highest"))).fetchall()
    writers = await (await conn.execute(statement("outbox_writers"))).fetchall()
    return _Watch(highest, frozenset(writer for (writer,) in writers))
