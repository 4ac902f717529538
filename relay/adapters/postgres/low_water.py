"""Low-water marks: for each lane, the `seq` below which nothing is left to publish. A claim reads from there.

Published events stay in the index of ready ones while any snapshot is older than their publication, and a claim
would read past all of them. So while claims are slow, a process finds out below which seq a lane has nothing left.
This low-water mark stays valid: seq values are given in order, and every transaction that got one below it is
over. Events that are reopened (to be published again) are counted, and end the epoch of all marks. So does a crash
of the server, because it may give positions out again, and a backup that is put back: another sequence, or one
that stands lower than before. Without marks, publishing fell to 0.02 of its rate after
ten minutes under one snapshot.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from psycopg.errors import QueryCanceled

from relay.adapters.postgres.pool import Connection, query
from relay.domain.ordering import LANES

#: The lane of the events without a key.
NO_LANE: Final = -1
#: The longest pause between two searches, in seconds.
_MAX_PAUSE_S: Final = 1.6
#: A step that takes the server less makes the pause longer: published entries are removed, and marks help little.
_SHORT_S: Final = 0.005
#: After a step that took less, in seconds, the next one is longer.
_QUICK_S: Final = 0.1
#: For how long marks are raised after claims were slow, in seconds. The marks stay valid for longer.
KEEP_S: Final = 60.0
#: How often all marks are found again from the start, in seconds: an operator may have given an event a low seq.
RENEW_INTERVAL_S: Final = 600.0
#: Below every seq.
NONE: Final = -(2**63)


class Epoch(NamedTuple):
    """The time for which marks hold.

    ``times``: how often events were reopened. ``since``: since when the server runs without a crash. ``place``:
    the file of the sequence.
    """

    times: int
    since: datetime
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """When low-water marks are searched for, and how far. Times are in seconds, steps in seq values.

    A claim that takes longer than ``slow`` may read past many published events. It surely does if consecutive slow
    claims take more than ``together``: a busy machine makes a few claims slow. ``pause``: between two searches.
    ``search``: how long the steps of one search may take in sum. ``step``: the time-out of one.

    The first step covers ``first`` seq values, as one step over everything could hit the time-out each time; later
    ones cover ``fewest`` to ``most``.
    """

    slow: float = 0.025
    together: float = 0.25
    pause: float = 0.1
    search: float = 1.0
    step: float = 0.5
    first: int = 50_000
    fewest: int = 10_000
    most: int = 2**60


#: Those of a worker.
SEARCH_LIMITS: Final = SearchLimits()


@dataclass(frozen=True, slots=True)
class _Watch:
    """A moment: the highest seq given until then, and the open transactions that may have taken one."""

    highest: int
    writers: frozenset[str]


class LowWaterMarks:
    """The low-water marks of the lanes of one database, as far as this process knows them. For one event loop."""

    def __init__(self, limits: SearchLimits = SEARCH_LIMITS) -> None:
        self._limits = limits
        self._lock = asyncio.Lock()
        self._next_look = math.inf
        self._pause = limits.pause
        self._until = self._slow = 0.0
        self._begin(None)

    def _begin(self, epoch: Epoch | None) -> None:
        """Forget all marks: claims read each lane from its beginning."""
        self._epoch = epoch
        self._watch: _Watch | None = None
        self._decided = NONE
        self._step_seqs = self._limits.first
        self._marks = _lowest()
        # The marks that are being found. During a renewal they differ from those in use.
        self._found = self._marks
        self._renewal = math.inf
        self._behind = False

    async def find(self, conn: Connection, lanes: Sequence[int], epoch: Epoch, highest: int) -> list[int] | None:
        """Return the mark of each of these lanes; None while they are so far behind that a claim might time out.

        ``epoch`` and ``highest``, the last seq that was given, were read earlier in this transaction. Each of its
        statements must have its own snapshot.
        """
        if epoch != self._epoch or (highest < self._decided and await self._set_back(conn)):
            self._begin(epoch)
        if self._time_to_look():
            async with self._lock:
                if epoch == self._epoch and self._time_to_look():
                    await self._look(conn, epoch)
        if epoch != self._epoch:
            # Another claim has begun a new epoch meanwhile.
            return [NONE] * len(lanes)
        return None if self._behind else [self._marks[lane] for lane in lanes]

    def foresee(self, lanes: Sequence[int]) -> tuple[Epoch, list[int]] | None:
        """Return the marks of these lanes as `find` would, without asking; None if it would have to ask.

        They hold only if the epoch is still the same, and `holds` says so.
        """
        if self._epoch is None or self._behind or self._time_to_look():
            return None
        return self._epoch, [self._marks[lane] for lane in lanes]

    def holds(self, foreseen: Epoch, epoch: Epoch, highest: int) -> bool:
        """Whether marks that were foreseen hold, by what the same transaction has read."""
        return foreseen == epoch == self._epoch and highest >= self._decided

    async def _set_back(self, conn: Connection) -> bool:
        """Tell whether the sequence stands below what was given, by a look after that was read."""
        decided = self._decided
        [[highest]] = await query(conn, "outbox/highest")
        return bool(highest < decided)

    def note(self, seconds: float) -> None:
        """Note how long a claim has taken."""
        self._slow = self._slow + seconds if seconds > self._limits.slow else 0.0
        if self._slow > self._limits.together:
            now = time.monotonic()
            self._until = now + KEEP_S
            if self._next_look == math.inf:
                self._next_look, self._pause = now, self._limits.pause

    def _time_to_look(self) -> bool:
        return time.monotonic() >= min(self._next_look, self._renewal)

    async def _look(self, conn: Connection, epoch: Epoch) -> None:
        """Raise the marks as far as everything is decided."""
        now = await _watch(conn)
        if epoch != self._epoch:
            return
        before = self._watch or now
        vain = not before.writers.isdisjoint(now.writers)
        self._watch = before if vain else now
        if not vain:
            # A transaction that begins to write after this moment gets a higher seq.
            self._decided = before.highest if now.writers else now.highest
        if self._decided > NONE:
            await self._raise(conn, epoch)
        done = time.monotonic()
        if self._behind:
            self._next_look = done
        elif done < self._until or self._renewing:
            self._next_look = done + self._pause
        else:
            self._next_look = math.inf

    @property
    def _renewing(self) -> bool:
        return self._found is not self._marks

    async def _raise(self, conn: Connection, epoch: Epoch) -> None:
        begun = time.monotonic()
        if begun >= self._renewal:
            self._found, self._renewal, self._step_seqs = _lowest(), math.inf, self._limits.first
        # Claims do not need the renewed marks yet, so a renewal goes one step at a time.
        end = begun + (0.0 if self._renewing else self._limits.search)
        there = moved = False
        while not there and epoch == self._epoch:
            found = await self._advance(conn)
            if found is not None and epoch == self._epoch:
                moved, there = True, found
            if time.monotonic() >= end:
                break
        # If not even one step succeeds, claims try with the marks they have.
        self._behind = moved and not there and not self._renewing

    async def _advance(self, conn: Connection) -> bool | None:
        """Go one step in each lane. Returns whether the end is reached; None when the step took too long."""
        epoch, limits = self._epoch, self._limits
        held = {"lanes": [*self._found], "marks": [*self._found.values()]}
        try:
            rows = await _raised(conn, limits.step, held | {"step": self._step_seqs, "decided": self._decided})
        except QueryCanceled:
            self._step_seqs = max(self._step_seqs // 8, limits.fewest)
            return None
        there, seconds = all(done for _, _, done, _ in rows), rows[-1][-1]
        if not there and seconds < _QUICK_S:
            self._step_seqs = min(2 * self._step_seqs, limits.most)
        longer, shorter = min(2 * self._pause, _MAX_PAUSE_S), max(self._pause / 2, limits.pause)
        self._pause = longer if seconds < _SHORT_S else shorter
        if epoch == self._epoch:
            self._settle({lane: mark for lane, mark, *_ in rows}, there)
        return there

    def _settle(self, found: Mapping[int, int], there: bool) -> None:
        """Use what a step has found as marks."""
        if there and self._renewal == math.inf:
            self._renewal = time.monotonic() + RENEW_INTERVAL_S
        if there or not self._renewing:
            self._marks = self._found = found
        else:
            self._marks = {lane: max(mark, found[lane]) for lane, mark in self._marks.items()}
            self._found = found


def _lowest() -> Mapping[int, int]:
    return dict.fromkeys((*range(LANES), NO_LANE), NONE)


async def _raised(
    conn: Connection, seconds: float, terms: Mapping[str, Any]
) -> Sequence[tuple[int, int, bool, float]]:
    # No rollback, unless it fails: after one, the driver deallocates what claims have prepared.
    async with conn.transaction():
        [[usual, _]] = await query(conn, "session/change_limit", limit=str(round(1000 * seconds)))
        found = await query(conn, "outbox/low_water_marks", **terms)
        await query(conn, "session/change_limit", limit=usual)
    return found


async def _watch(conn: Connection) -> _Watch:
    # In this order: a transaction that got a seq up to the highest is among the writers, or over.
    [[highest]] = await query(conn, "outbox/highest")
    writers = await query(conn, "outbox/writers")
    return _Watch(highest, frozenset(writer for (writer,) in writers))
