"""Where a claim begins to look, once the way there has become long.

Published events stay in the index of ready ones for as long as anybody holds a snapshot that is older than their
publication, and a claim would walk through all of them. So while claims are slow, a process finds out up to which
place nothing is left in a lane. Such a floor holds for good: places are given in order, every transaction that
had been given one below it is over, and the events that come back to be published are counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from relay.adapters.postgres.pool import Connection
from relay.adapters.postgres.sql import statement

#: A claim that takes longer may have a long way to go, in seconds, and has if it and those just before it were as
#: slow and took so long together. A busy machine makes a few of them slow as well.
SLOW: Final = 0.025
TOGETHER: Final = 0.25
#: How often it is looked how far everything is decided, in seconds, and how soon after it was in vain.
PAUSE: Final = 0.5
_SOON: Final = 0.05
#: How many places are looked at by the first step, and how long the steps of one look may take, in seconds. A
#: statement that ran through all places might not end in its time, and then none ever would.
_STEP: Final = 50_000
_STEPS_SECONDS: Final = 2.0
_QUICK: Final = 0.1
_LONGEST_STEP: Final = 2**60
#: For how long floors are raised after claims were slow, in seconds. They hold for longer.
KEEP: Final = 60.0
#: How often the whole way is gone in any case, in seconds: an event may have been given a low place by hand.
RENEW: Final = 600.0
#: Below every place.
NONE: Final = -(2**63)

#: How often events were reopened, and since when the server runs: floors of another epoch are void.
Epoch: TypeAlias = tuple[int, datetime]


@dataclass(frozen=True, slots=True)
class _Watch:
    """A moment: the highest place that was given until then, and who may have taken one and was not done."""

    highest: int
    writers: frozenset[str]


class Floors:
    """The floors of the lanes of one database, as far as this process knows them. For one event loop."""

    def __init__(self) -> None:
        self._floors: dict[int, int] = {}
        self._epoch: Epoch | None = None
        self._watch: _Watch | None = None
        self._next_look = self._renewal = math.inf
        self._until = self._slow = 0.0

    def forget(self) -> None:
        """Begin again: claims walk the whole way."""
        self._floors, self._watch, self._epoch = {}, None, None
        self._renewal = math.inf

    async def find(self, conn: Connection, lanes: Sequence[int], epoch: Epoch) -> list[int]:
        """Where to begin in each of these lanes.

        ``epoch`` was read before, in this transaction, of which each statement has to have a snapshot of its own.
        """
        if epoch != self._epoch:
            self.forget()
            self._epoch = epoch
        for lane in lanes:
            self._floors.setdefault(lane, NONE)
        if time.monotonic() >= min(self._next_look, self._renewal):
            await self._look(conn, epoch)
        # Another claim may have begun another epoch meanwhile.
        return [self._floors.get(lane, NONE) if epoch == self._epoch else NONE for lane in lanes]

    def note(self, seconds: float) -> None:
        """Take notice of how long a claim has taken."""
        self._slow = self._slow + seconds if seconds > SLOW else 0.0
        if self._slow > TOGETHER:
            now = time.monotonic()
            self._until, self._next_look = now + KEEP, min(now, self._next_look)

    async def _look(self, conn: Connection, epoch: Epoch) -> None:
        """Raise the floors as far as everything is decided."""
        self._next_look = time.monotonic() + _SOON
        before = self._watch or await _watch(conn)
        after = await _watch(conn)
        if epoch != self._epoch:
            return
        if not before.writers.isdisjoint(after.writers):
            self._watch = before
            return
        self._watch = after
        await self._raise(conn, epoch, before.highest)
        now = time.monotonic()
        self._next_look = now + PAUSE if now < self._until else math.inf

    async def _raise(self, conn: Connection, epoch: Epoch, decided: int) -> None:
        step, end, moved = _STEP, time.monotonic() + _STEPS_SECONDS, True
        if time.monotonic() > self._renewal:
            self._floors = dict.fromkeys(self._floors, NONE)
        if set(self._floors.values()) == {NONE}:
            self._renewal = time.monotonic() + RENEW
        while moved and epoch == self._epoch and time.monotonic() < end:
            floors = dict(self._floors)
            found = {"lanes": [*floors], "floors": [*floors.values()], "step": step, "decided": decided}
            begun = time.monotonic()
            raised = dict(await (await conn.execute(statement("outbox_floors"), found)).fetchall())
            moved = raised != floors
            step = min(2 * step, _LONGEST_STEP) if time.monotonic() - begun < _QUICK else max(1, step // 2)
            if moved and epoch == self._epoch:
                self._floors |= raised


async def _watch(conn: Connection) -> _Watch:
    # In this order: whoever is given a place up to the highest is among the writers, or done.
    [[highest]] = await (await conn.execute(statement("outbox_highest"))).fetchall()
    writers = await (await conn.execute(statement("outbox_writers"))).fetchall()
    return _Watch(highest, frozenset(writer for (writer,) in writers))
