"""Fits the connections of a process to the server that it finds, so that the user's own service always gets some.

All processes of the fleet together take a third of what the server allows. Who asks does so on a connection that
the process has anyway. While few places are free, or the server refuses, every process gives way and grows again
later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from relay.adapters.postgres.budget import LEAST, MOST, Budget
from relay.adapters.postgres.pool import Pool, query
from relay.concurrency import end, is_cancelled
from relay.domain.errors import DatabaseUnreachable, QueueUnreachable, SchemaMissing
from relay.domain.members import LOST_AFTER_S, Seen

_log = logging.getLogger("relay")

#: The whole fleet takes this part of what a server allows.
_PART: Final = 3
#: The process gives way while fewer than this part of all places are free.
_SPARE: Final = 10


@dataclass(frozen=True, slots=True)
class FitTimes:
    """``every``: seconds between two looks. ``at_first``: the limit of connections before the first look."""

    every: float = 10.0
    at_first: int = 8


FIT_TIMES: Final = FitTimes()


class Heartbeats(Protocol):
    """Knows the processes of the fleet."""

    async def all(self) -> Sequence[Seen]:
        """See `relay.adapters.members.Members`."""
        ...


@dataclass(slots=True)
class _Server:
    budget: Budget
    #: One for each context. All lead to this server.
    pools: list[Pool] = field(default_factory=list)
    pooled: bool = False
    told: int = 0


class FitConnections:
    """Looks at each server from time to time. ``most``: what the user has set for a process; None: a fair part."""

    def __init__(self, most: int | None, fleet: Heartbeats, times: FitTimes = FIT_TIMES) -> None:
        self._most, self._fleet, self._times = most, fleet, times
        self._servers: list[_Server] = []
        self._workers = 1
        self._task: asyncio.Task[None] | None = None

    def add(self, budget: Budget, pool: Pool, *, pooled: bool = False) -> None:
        """Fit the budget of a context's pool. ``pooled``: a pooler is between, which decides itself."""
        server = next((it for it in self._servers if it.budget is budget), None)
        if server is None:
            server = _Server(budget, pooled=pooled)
            self._servers.append(server)
            if self._most is None and not pooled:
                budget.fit(self._times.at_first)
        server.pools.append(pool)

    def start(self) -> None:
        """Look at once, and then in fixed intervals."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            await end(self._task)

    async def _run(self) -> None:
        while not is_cancelled():
            await self.look()
            await asyncio.sleep(self._times.every)

    async def look(self) -> None:
        """Fit all budgets now. A server or a Redis that is away changes nothing."""
        with suppress(QueueUnreachable):
            seen = await self._fleet.all()
            alive = [it for it in seen if it.member.kind == "worker" and it.silent_seconds < LOST_AFTER_S]
            self._workers = max(1, len(alive))
        await asyncio.gather(*map(self._fit, self._servers))

    async def _fit(self, server: _Server) -> None:
        if server.pooled:
            server.budget.fit(self._most or MOST)
            return
        for pool in server.pools:
            with suppress(DatabaseUnreachable, SchemaMissing):
                async with pool.connection() as conn:
                    [(allowed, free)] = await query(conn, "server/allowed")
                self._tell(server, allowed, free)
                return
        # Nobody knows. After a refusal this lets the process try again.
        server.budget.fit(server.budget.most)

    def _tell(self, server: _Server, allowed: int, free: int) -> None:
        # The scheduler is one process more, and listens to each context besides.
        processes, listening = self._workers + 1, len(server.pools)
        fair = max(LEAST, min(MOST, (allowed // _PART - listening) // processes))
        most = self._most or fair
        if free < max(LEAST, allowed // _SPARE):
            server.budget.refused()
        server.budget.fit(most)
        if server.told == most:
            return
        server.told = most
        if self._most is None:
            _log.info("takes up to %d connections: the server allows %d, %d processes", most, allowed, processes)
        elif processes * most + listening > allowed:
            _log.warning(
                "max_connections = %d does not fit: %d processes, and the server allows %d; remove the setting",
                *(most, processes, allowed),
            )
