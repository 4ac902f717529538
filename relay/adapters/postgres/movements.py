"""Measures how the backlogs of a context's database move. Reads a bounded number of rows, and takes no locks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from relay.adapters.postgres.controls import controls_in
from relay.adapters.postgres.pool import Connection, Source, query
from relay.domain.controls import Controls
from relay.domain.standstill import (
    AwaitedVersion,
    BacklogKind,
    Failing,
    LockHolder,
    Movement,
    RefusedEvents,
    confirmed,
    rests,
    standing,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookLimits:
    """How much a look reads, and how long to wait before the second one.

    ``counted``: waiting rows of a subscription or queue. ``lane``: of a lane. ``looked``: rows that were finished
    last, by which movement is seen. ``parts``: queues. ``pause``: seconds.
    """

    counted: int = 2_000
    lane: int = 50
    looked: int = 2_000
    parts: int = 200
    pause: float = 1.5


LOOK_LIMITS: Final = LookLimits()
#: The archive runs every hour. What should have left for so long and has not stands still.
ARCHIVE_BOUND: Final = timedelta(days=1)


async def awaited_versions(
    source: Source, name: str | None = None, counted: int = LOOK_LIMITS.counted
) -> Sequence[AwaitedVersion]:
    """The versions that messages wait for, of all subscriptions or of the one with this ``name``."""
    async with source() as conn:
        rows = await query(conn, "inbox/awaited_versions", counted=counted, name=name)
    names = ("subscription", "event_type", "event_version", "subject", "count", "seconds")
    return [AwaitedVersion(**dict(zip(names, row, strict=True))) for row in rows]


class PostgresMovements:
    """What moves, and what stands still, in the tables of one context.

    ``bound``: from how long on something that is due and does not move stands still. ``dead_head_blocks``: as the
    publisher's. All methods raise DatabaseUnreachable, and SchemaMissing if the database is not migrated.
    """

    def __init__(
        self, source: Source, *, bound: timedelta, dead_head_blocks: bool, limits: LookLimits = LOOK_LIMITS
    ) -> None:
        self._source, self._bound, self._blocks, self._limits = source, bound, dead_head_blocks, limits
        self._before: tuple[float, Sequence[Movement]] | None = None
        #: How long ago a message of each subscription was processed or claimed, by the last look.
        self.worked: dict[str, float | None] = {}

    async def look(self) -> Sequence[Movement]:
        """Return how each part moves in which something is due. What is paused on purpose is left out."""
        async with self._source() as conn:
            controls = Controls.of(await controls_in(conn))
            moving = [
                *await self._events(conn),
                *await self._messages(conn),
                *await self._rows(conn, BacklogKind.TASKS, "tasks/moving", parts=self._limits.parts),
                *await self._rows(conn, BacklogKind.RUNS, "schedule/moving"),
                *await self._rows(conn, BacklogKind.LETTERS, "inbox/unrecorded"),
                *await self._rows(conn, BacklogKind.ALERTS, "alerts/moving"),
            ]
        return [it for it in moving if not rests(it, controls)]

    async def standing(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> Sequence[Movement]:
        """Return what stands still in two looks. Who calls this again and again never waits for the second one."""
        found, now = standing(await self.look(), self._bound), time.monotonic()
        before, self._before = self._before, (now, found)
        if not found:
            return ()
        if before is None or not self._limits.pause <= now - before[0] <= self._bound.total_seconds():
            await sleep(self._limits.pause)
            before, found = (now, found), standing(await self.look(), self._bound)
        return confirmed(before[1], found)

    async def unarchived(self, context: str, after: timedelta) -> Sequence[Movement]:
        """Return the ended rows that stay in their tables, by kind and stream. ``after``: as the archive's."""
        terms = {"age": after, "bound": ARCHIVE_BOUND, "job": f"archive:{context}"}
        async with self._source() as conn:
            rows = await query(conn, "archive/moving", counted=self._limits.counted, **terms)
        return standing([_movement(BacklogKind.ARCHIVE, row) for row in rows], ARCHIVE_BOUND)

    async def refused(self) -> RefusedEvents:
        """Return what the broker refuses again and again."""
        async with self._source() as conn:
            [row] = await query(conn, "outbox/refused", counted=self._limits.counted)
        return RefusedEvents(count=row[0], seconds=row[1], reason=row[2])

    async def failing(self) -> Sequence[Failing]:
        """Return the subscriptions whose handlers fail."""
        limits = self._limits
        async with self._source() as conn:
            rows = await query(
                conn, "inbox/failing", counted=limits.counted, looked=limits.looked, bound=self._bound
            )
        names = ("subscription", "count", "seconds", "reason", "handled")
        return [Failing(**dict(zip(names, row, strict=True))) for row in rows]

    async def awaited(self) -> Sequence[AwaitedVersion]:
        """Return the versions that messages wait for, because no worker has handled them so far."""
        return await awaited_versions(self._source, counted=self._limits.counted)

    async def dead(self) -> int:
        """Return how many events were given up."""
        async with self._source() as conn:
            [(count,)] = await query(conn, "outbox/dead", counted=self._limits.counted)
        return int(count)

    async def lease(self) -> tuple[str, float] | None:
        """Return who leads, or led last without ending properly, and for how many seconds its lease is over."""
        async with self._source() as conn:
            rows = await query(conn, "schedule/lease")
        return (rows[0][0], rows[0][1]) if rows else None

    async def limit(self, patience: timedelta) -> None:
        """Limit how long each statement may take from now on."""
        async with self._source() as conn:
            await query(conn, "session/patience", limit=str(int(patience.total_seconds() * 1000)))

    async def holders(self) -> Sequence[LockHolder]:
        """Return the sessions that have held our locks for longer than the bound. Waits for no lock."""
        async with self._source() as conn:
            rows = await query(conn, "server/holders", bound=self._bound)
        return [LockHolder(pid=pid, name=name, seconds=seconds, what=what) for pid, name, seconds, what in rows]

    async def _events(self, conn: Connection) -> Sequence[Movement]:
        """One movement for the outbox if none of it moves, else one for each lane."""
        lanes = await query(
            conn,
            "outbox/moving",
            looked=self._limits.looked,
            counted=self._limits.lane,
            bound=self._bound,
            dead_head_blocks=self._blocks,
        )
        if not lanes:
            return ()
        moved: float | None = lanes[0][6]
        if moved is None or moved > self._bound.total_seconds():
            first = max(lanes, key=lambda row: row[2])
            due = sum(row[1] for row in lanes)
            return [_movement(BacklogKind.EVENTS, ("", due, first[2], first[3], moved, False))]
        return [
            _movement(BacklogKind.EVENTS, ("without a key" if lane < 0 else f"lane {lane}", *rest))
            for lane, *rest, _ in lanes
        ]

    async def _messages(self, conn: Connection) -> Sequence[Movement]:
        limits = self._limits
        rows = await query(conn, "inbox/moving", counted=limits.counted, looked=limits.looked, bound=self._bound)
        self.worked = {row[0]: row[6] for row in rows}
        return [_movement(BacklogKind.MESSAGES, row[:6]) for row in rows]

    async def _rows(self, conn: Connection, kind: BacklogKind, name: str, **more: Any) -> Sequence[Movement]:
        limits = self._limits
        rows = await query(conn, name, counted=limits.counted, looked=limits.looked, bound=self._bound, **more)
        return [_movement(kind, row) for row in rows]


def _movement(kind: BacklogKind, row: Sequence[Any]) -> Movement:
    part, due, due_seconds, head, moved_seconds, overtaken = row
    return Movement(
        kind=kind,
        part=part,
        due=due,
        due_seconds=due_seconds,
        head=head,
        moved_seconds=moved_seconds,
        overtaken=overtaken,
    )
