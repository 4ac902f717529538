"""Prefetch of claims: one statement claims a row together with the rows that wait behind it in this process.

Under load many rows wait in a worker's memory for a thread, or for a slot on the event loop. A claim for each
costs a round trip and a transaction. So one statement claims the next rows too. Only rows that were never tried
are prefetched, and only as many as will begin within a moment: a claim counts an attempt, and a worker that dies
wastes the claims it has not begun.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from relay.concurrency import Batcher
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


class _Ahead(Generic[Id, Claim]):
    """The rows of one kind that this process has claimed but not begun, and how many to claim at once."""

    def __init__(self, waiting: Waiting[Id], limits: PrefetchLimits, clock: Callable[[], float]) -> None:
        self._waiting = waiting
        self._held: dict[Id, tuple[float, Claim]] = {}
        self._limits = limits
        self._clock = clock
        self._most = limits.rows
        self._size, self._last, self._at = 1, 1, 0.0
        self._watched = False

    def _others(self) -> Sequence[Id]:
        """The rows that the next statement claims, too."""
        return self._waiting(self._capacity()) if self._most else ()

    def _capacity(self) -> int:
        """How many rows to prefetch: twice the last number, limited to what will begin within the horizon."""
        now = self._clock()
        pace, self._at = (now - self._at) / self._last, now
        self._size = max(1, min(2 * self._size, self._most, int(self._limits.horizon / max(pace, 1e-6))))
        return self._size - 1

    def _keep(self, claims: Mapping[Id, Claim]) -> bool:
        """Hold claims. Whether somebody must begin to look after them."""
        now = self._clock()
        self._held.update((id, (now, claim)) for id, claim in claims.items())
        begin = bool(self._held) and not self._watched
        self._watched = self._watched or begin
        return begin

    def _fresh(self, at: float) -> bool:
        return self._clock() - at < self._limits.stale

    def _take_older(self, seconds: float) -> list[Claim]:
        """Take the claims that are held for so long."""
        since = self._clock() - seconds
        old = [id for id, (at, _) in list(self._held.items()) if at <= since]
        return [held[1] for id in old if (held := self._held.pop(id, None)) is not None]


class Prefetch(_Ahead[Id, Claim]):
    """Claims ahead for threads. Safe in any thread.

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
        super().__init__(waiting, limits, clock)
        self._claim_many = claim
        self._undo = give_back
        self._loop = loop
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
        if self._fresh(at):
            return claim
        self._give_back([claim])
        return None

    def close(self) -> None:
        """Prefetch nothing any more, and give back the claims that are held."""
        self._most = 0
        self._give_back_older(0.0)

    def _claim_with_others(self, id: Id) -> Claim | None:
        others = self._others()
        self._last = 1 + len(others)
        if not others:
            return None
        claims = dict(self._claim_many(id, others))
        ours = claims.pop(id, None)
        if self._keep(claims):
            self._loop.call_soon_threadsafe(self._watch)
        return ours

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
            self._give_back(self._take_older(seconds))

    def _give_back(self, claims: Sequence[Claim]) -> None:
        """Give claims back. A claim that cannot be given back holds until its lease is over."""
        if claims:
            with suppress(DatabaseUnreachable):
                self._undo(claims)


class PrefetchOnLoop(_Ahead[Id, Claim]):
    """Claims ahead for the event loop. Rows that are asked for at the same time share a statement.

    ``claim`` claims rows, and also the other given rows that were never tried. It skips locked rows. ``alone``
    claims a row that it left out. For the rest see `Prefetch`.
    """

    def __init__(
        self,
        claim: Callable[[Sequence[Id], Sequence[Id]], Awaitable[Mapping[Id, Claim]]],
        alone: Callable[[Id], Awaitable[Claim | None]],
        give_back: Callable[[Sequence[Claim]], Awaitable[None]],
        waiting: Waiting[Id],
        *,
        limits: PrefetchLimits = USUAL_LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(waiting, limits, clock)
        self._claim_many, self._alone, self._undo = claim, alone, give_back
        self._claims: Batcher[Id, Claim | None] = Batcher(self._claim_together)
        self._giving: set[asyncio.Task[None]] = set()

    async def claim(self, id: Id) -> Claim | None:
        """Claim a row. None if it is not free."""
        held = self._held.pop(id, None)
        if held is None:
            claim = await self._claims.ask(id)
            return await self._alone(id) if claim is None else claim
        at, claim = held
        if self._fresh(at):
            return claim
        await self._give_back([claim])
        return await self._alone(id)

    async def close(self) -> None:
        """Prefetch nothing any more, and give back the claims that are held."""
        self._most = 0
        await self._give_back(self._take_older(0.0))
        await asyncio.gather(*self._giving)

    async def _claim_together(self, ids: Sequence[Id]) -> Sequence[Claim | None]:
        # The statement before this one may have claimed some of them.
        found = {id: held[1] for id in ids if (held := self._held.pop(id, None)) is not None}
        if asked := [id for id in dict.fromkeys(ids) if id not in found]:
            others = [id for id in self._others() if id not in asked and id not in self._held]
            self._last = len(asked) + len(others)
            claims = await self._claim_many(asked, others)
            found |= {id: claims[id] for id in asked if id in claims}
            rest = {id: claim for id, claim in claims.items() if id not in found}
            if not self._most:  # closed meanwhile
                await self._give_back(list(rest.values()))
            elif self._keep(rest):
                self._watch()
        # If two callers asked for the same row, the first one gets it.
        return [found.pop(id, None) for id in ids]

    def _watch(self) -> None:
        asyncio.get_running_loop().call_later(self._limits.stale / 2, self._look)

    def _look(self) -> None:
        """Give back claims that have not begun: every slot is busy with long work."""
        self._watched = bool(self._held)
        if self._watched:
            giving = asyncio.get_running_loop().create_task(self._give_back(self._take_older(self._limits.stale)))
            self._giving.add(giving)
            giving.add_done_callback(self._giving.discard)
            self._watch()

    async def _give_back(self, claims: Sequence[Claim]) -> None:
        """Give claims back. A claim that cannot be given back holds until its lease is over."""
        if claims:
            with suppress(DatabaseUnreachable):
                await self._undo(claims)
