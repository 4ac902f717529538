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
from relay.domain.backlogs import FLEET_PART
from relay.domain.errors import DatabaseUnreachable, QueueUnreachable, SchemaMissing
from relay.domain.members import LOST_AFTER_S, Seen

_log = logging.getLogger("relay")

#: So many connections each process keeps before workers listen to contexts, one worker to each.
_KEPT: Final = 4
#: To so many contexts a worker may listen if a pooler hides what the server allows.
_HEARD_BEHIND_POOLER: Final = 8
#: The process gives way while fewer than this part of all places are free.
_SPARE: Final = 10


@dataclass(frozen=True, slots=True)
class FitTimes:
    """``every``: seconds between two looks. ``at_first``: the limit of connections before the first look.

    ``early``: the seconds between the first looks, while other processes of the fleet start, too.
    """

    every: float = 10.0
    at_first: int = 8
    early: tuple[float, ...] = (1.0, 1.0, 3.0)


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
    #: To so many of these a worker may listen.
    heard: int = 0


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
            server = _Server(budget, pooled=pooled, heard=_HEARD_BEHIND_POOLER if pooled else 0)
            self._servers.append(server)
            if self._most is None and not pooled:
                budget.fit(self._times.at_first)
        server.pools.append(pool)

    def may_listen(self, pool: Pool) -> bool:
        """Whether the server has room for a worker that listens to a pool's context, too."""
        return any(pool in server.pools[: server.heard] for server in self._servers)

    def start(self) -> None:
        """Look at once, and then in fixed intervals."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            await end(self._task)

    async def _run(self) -> None:
        pauses = iter(self._times.early)
        while not is_cancelled():
            await self.look()
            await asyncio.sleep(next(pauses, self._times.every))

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
                    [(allowed, free, ours)] = await query(conn, "server/allowed")
                self._tell(server, allowed, free, ours)
                return
        # Nobody knows. After a refusal this lets the process try again.
        server.budget.fit(server.budget.most)

    def _tell(self, server: _Server, allowed: int, free: int, ours: int) -> None:
        # The scheduler is one process more. Besides, it listens to each context, and somebody looks at each:
        # health, probes, operators. To as many as there is room for, a worker listens, too.
        processes, contexts, part = self._workers + 1, len(server.pools), allowed // FLEET_PART
        heard = max(0, min(contexts, part - 2 * contexts - _KEPT * processes))
        beside = 2 * contexts + heard
        fair = max(LEAST, min(MOST, (part - beside) // processes))
        # A new process takes no more than the others have left. At their next look they know of it.
        left = server.budget.open + part - ours
        most, spare = self._most or max(LEAST, min(fair, left)), max(LEAST, allowed // _SPARE)
        if free < spare:
            server.budget.refused()
            server.heard = 0
        elif free >= spare + heard:
            # Not sooner, or they would take the places that they have just given back.
            server.heard = heard
        server.budget.fit(most)
        if server.told == (self._most or fair):
            return
        server.told = self._most or fair
        if self._most is None:
            _log.info("takes up to %d connections: the server allows %d, %d processes", fair, allowed, processes)
        elif processes * most + beside > allowed:
            _log.warning(
                "max_connections = %d does not fit: %d processes, and the server allows %d; remove the setting",
                *(most, processes, allowed),
            )
