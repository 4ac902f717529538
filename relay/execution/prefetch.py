"""Prefetch of claims: one statement claims a row together with the rows that wait behind it in this process.

Under load many rows wait in a worker's memory for a thread. A claim for each costs a round trip and a transaction.
So one statement claims the next rows too. Only rows that were never tried are prefetched, and only as many as will
begin within a moment: a claim counts an attempt, and a worker that dies wastes the claims it has not begun.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from relay.domain.errors import DatabaseUnreachable

Id = TypeVar("Id", bound=Hashable)
Claim = TypeVar("Claim")

#: Returns up to a given number of keys of rows that wait in this process, the next ones first.
Waiting: TypeAlias = Callable[[int], Sequence[Id]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchLimits:
    """How far a process claims ahead.

    ``rows``: how many rows one statement claims at most, with the one that begins now. ``horizon``: within how
    many seconds prefetched rows should begin. ``stale``: after how many seconds a claim that has not begun is
    given back. It is far less than a lease.
    """

    rows: int = 16
    horizon: float = 0.25
    stale: float = 2.0


USUAL_LIMITS: Final = PrefetchLimits()


class Prefetch(Generic[Id, Claim]):
    """The rows of one kind that this process has claimed but not begun. Safe in any thread.

    ``claim`` claims a row, and also the other given rows that were never tried. It skips locked rows.
    ``give_back`` undoes claims, and the attempts that they counted. Both raise DatabaseUnreachable. ``clock``: the
    time in seconds, as of `time.monotonic`.
    """

    def __init__(
        self,
        claim: Callable[[Id, Sequence[Id]], Mapping[Id, Claim]],
        give_back: Callable[[Sequence[Claim]], None],
        waiting: Waiting[Id],
        loop: asyncio.AbstractEventLoop,
        *,
        limits: PrefetchLimits = USUAL_LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._claim_many = claim
        self._undo = give_back
        self._waiting = waiting
        self._loop = loop
        self._held: dict[Id, tuple[float, Claim]] = {}
        self._limits = limits
        self._clock = clock
        self._most = limits.rows
        self._size, self._last, self._at = 1, 1, 0.0
        self._watched = False
        self._lock = threading.Lock()

    def claim(self, id: Id) -> Claim | None:
        """Return the claim of a row. None if the caller must claim the row alone."""
        held = self._held.pop(id, None)
        if held is None:
            with self._lock:
                # Another thread may have claimed the row since the first look. Its claim is held by now.
                held = self._held.pop(id, None)
                if held is None:
                    return self._claim_with_others(id)
        at, claim = held
        if self._clock() - at < self._limits.stale:
            return claim
        self._give_back([claim])
        return None

    def close(self) -> None:
        """Prefetch nothing any more, and give back the claims that are held."""
        self._most = 0
        self._give_back_older(0.0)

    def _claim_with_others(self, id: Id) -> Claim | None:
        others = self._waiting(self._capacity()) if self._most else ()
        self._last = 1 + len(others)
        if not others:
            return None
        claims = dict(self._claim_many(id, others))
        ours, now = claims.pop(id, None), self._clock()
        self._held.update((other, (now, claim)) for other, claim in claims.items())
        if self._held and not self._watched:
            self._watched = True
            self._loop.call_soon_threadsafe(self._watch)
        return ours

    def _capacity(self) -> int:
        """How many rows to prefetch: twice the last number, limited to what will begin within the horizon."""
        now = self._clock()
        pace, self._at = (now - self._at) / self._last, now
        self._size = max(1, min(2 * self._size, self._most, int(self._limits.horizon / max(pace, 1e-6))))
        return self._size - 1

    def _watch(self) -> None:
        self._loop.call_later(self._limits.stale / 2, self._look)

    def _look(self) -> None:
        """Give back claims that have not begun: every thread is busy with long work."""
        self._watched = bool(self._held)
        if self._watched:
            self._loop.run_in_executor(None, self._give_back_older, self._limits.stale)
            self._watch()

    def _give_back_older(self, seconds: float) -> None:
        with self._lock:
            # Under the lock: a thread that wants one of these rows waits until it is given back.
            since = self._clock() - seconds
            old = [id for id, (at, _) in list(self._held.items()) if at <= since]
            claims = [held[1] for id in old if (held := self._held.pop(id, None)) is not None]
            self._give_back(claims)

    def _give_back(self, claims: Sequence[Claim]) -> None:
        """Give claims back. A claim that cannot be given back holds until its lease is over."""
        if claims:
            with suppress(DatabaseUnreachable):
                self._undo(claims)
