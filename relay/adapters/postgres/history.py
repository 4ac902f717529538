"""The history of a context in its database: the leader writes it, workers tell of it, operators read it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from psycopg.rows import dict_row

from relay.adapters.postgres.pool import Connection, Source, query
from relay.adapters.postgres.sql import statement
from relay.domain.history import (
    HOUR_PARTS,
    HOURS_KEPT,
    LAST,
    MINUTES_KEPT,
    PER_DOUBLING,
    SPANS,
    ContextHistory,
    LastHour,
    Level,
    Mark,
    Of,
    Period,
    Point,
    Series,
    Told,
    ends,
    times_of,
)

#: A minute is recorded so long after its end: workers tell what they counted at the end of a minute.
GRACE: Final = timedelta(seconds=5)
#: How many marks are shown at most.
MARKS: Final = 200
#: The kind of rows that say which releases were there. It is no series.
_RELEASE: Final = "release"
_NOBODY: Final[Mapping[str, int]] = {}
#: What is compared with the same before: so long a time.
_NOW: Final = timedelta(minutes=5)
_BEFORE: Final = (timedelta(), timedelta(hours=1), timedelta(days=1))

Name: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Minute:
    """A minute to record. ``next_in_seconds``: when to ask again."""

    at: datetime
    recorded: bool
    next_in_seconds: float


class PostgresHistory:
    """The history of one context. All raise DatabaseUnreachable and SchemaMissing."""

    def __init__(self, source: Source, *, grace: timedelta = GRACE) -> None:
        self._source, self._grace = source, grace

    # --- the leader ---

    async def minute(self) -> Minute:
        """Return the last whole minute."""
        async with self._source() as conn:
            [row] = await query(conn, "history/minute", grace=self._grace)
        return Minute(*row)

    async def record(self, at: datetime, levels: Sequence[Level], releases: Mapping[str, int] = _NOBODY) -> bool:
        """Record a minute; False if it was recorded before. Repeatable. ``releases``: how many run each."""
        shown = [(it.of.value, it.name, it.waiting, it.oldest_seconds, it.dead) for it in levels]
        shown += [(_RELEASE, name, count, 0.0, 0) for name, count in releases.items()]
        names = ("kinds", "names", "waiting", "oldest", "dead")
        parameters = {
            "at": at,
            "buckets": LAST,
            "per_e": PER_DOUBLING / math.log(2),
            **{name: [it[n] for it in shown] for n, name in enumerate(names)},
        }
        async with self._source() as conn:
            return (await conn.execute(statement("history/record"), parameters)).rowcount > 0

    async def roll_up(self, at: datetime) -> int:
        """Make hours of minutes, and delete what is too old; returns how many hours were made. Repeatable."""
        async with self._source() as conn:
            hours = await query(conn, "history/open_hours", at=at)
            for (hour,) in hours:
                await conn.execute(statement("history/roll_up"), {"hour": hour})
            kept = {"at": at, "minutes": MINUTES_KEPT, "hours": HOURS_KEPT}
            await conn.execute(statement("history/prune"), kept)
        return len(hours)

    # --- workers ---

    async def tell(self, told: Sequence[Told], *, ago: timedelta = timedelta()) -> None:
        """Store what a worker counted. ``ago``: how long ago the middle of that time was, about."""
        columns = {
            "kinds": [it.of.value for it in told],
            "names": [it.name for it in told],
            "failed": [it.failed for it in told],
            "handling": [json.dumps(it.handling) for it in told],
        }
        async with self._source() as conn:
            await conn.execute(statement("history/tell"), {**columns, "ago": ago})

    # --- operators ---

    async def read(self, context: str, span: Period, of: Of | None = None, name: str = "") -> ContextHistory:
        """Return all series of a time, or one. Only one has the times of each part; else those of ``now``."""
        async with self._source() as conn:
            [(now,)] = await (await conn.execute("SELECT clock_timestamp()")).fetchall()
            since, until = ends(span, now)
            one = {"kind": None if of is None else of.value, "name": name}
            shown = await _parts(conn, span, since, until, one, times=of is not None)
            minute = ends(SPANS["1h"], now)[1] - SPANS["1h"].part
            before = [await _five_minutes(conn, minute - ago, one) for ago in _BEFORE]
            marks = await query(conn, "history/marks", step=span.step, since=since, until=until, limit=MARKS)
        names = {*shown.series} | {it for found in before for it in found.series}
        if of is not None:
            names = {it for it in names if it == (of.value, name)}
        starts = [since + span.part * number for number in range(round(span.length / span.part))]
        series = [
            Series(
                Of(it[0]),
                it[1],
                [shown.point(it, at) for at in starts if at <= now],
                *(found.only(it) for found in before),
            )
            for it in sorted(names)
        ]
        return ContextHistory(context, span, since, until, series, [Mark(*row) for row in marks])

    async def last_hour(self) -> LastHour:
        """Return what all series did together, by one statement."""
        async with self._source() as conn:
            rows = await query(conn, "history/last_hour")
        minutes = {part: count for part, kind, count, *_ in rows if kind == Of.OUTBOX}
        done = {(kind, part): n for part, kind, _, n, _ in rows}
        failed: dict[int, int] = defaultdict(int)
        for part, _, _, _, n in rows:
            failed[part] += n
        parts = [it if it in minutes else None for it in range(HOUR_PARTS)]
        rates = {
            of: [None if it is None else done.get((of, it), 0) / (minutes[it] * 60) for it in parts] for of in Of
        }
        return LastHour(rates, [None if it is None else failed[it] for it in parts])


class _Parts:
    """What was read of a time, by series and part."""

    def __init__(self, span: Period) -> None:
        self._span = span
        self.series: dict[Name, dict[datetime, Mapping[str, Any]]] = defaultdict(dict)
        self.times: dict[tuple[Name, datetime, str], dict[int, int]] = defaultdict(dict)

    def point(self, name: Name, at: datetime) -> Point:
        """The part of a series. A series without a row had nothing to say, if the outbox has one."""
        minutes = self._recorded(at)
        row = self.series.get(name, {}).get(at)
        if not minutes or row is None:
            return Point(at=at, minutes=minutes)
        shown = {key: row[key] for key in ("done", "failed", "died", "waiting", "oldest_seconds", "dead")}
        handling, waited = (times_of(self.times.get((name, at, it), {})) for it in ("handling", "waited"))
        rate = row["done"] / (minutes * 60)
        return Point(at=at, minutes=minutes, rate=rate, handling=handling, waited=waited, **shown)

    def only(self, name: Name) -> Point | None:
        """The only part; None for a gap."""
        parts = [*self.series.get((Of.OUTBOX.value, ""), {})]
        return self.point(name, parts[0]) if parts else None

    def _recorded(self, at: datetime) -> int:
        row = self.series.get((Of.OUTBOX.value, ""), {}).get(at)
        return 0 if row is None else int(row["minutes"])


async def _five_minutes(conn: Connection, until: datetime, one: Mapping[str, Any]) -> _Parts:
    return await _parts(conn, Period("now", _NOW, _NOW), until - _NOW, until, one, times=True)


async def _parts(
    conn: Connection, span: Period, since: datetime, until: datetime, one: Mapping[str, Any], *, times: bool
) -> _Parts:
    asked = {"step": span.step, "part": span.part, "since": since, "until": until, **one}
    found = _Parts(span)
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(statement("history/points"), asked)
        for row in await cursor.fetchall():
            found.series[row["kind"], row["name"]][row["at"]] = row
        if times:
            await cursor.execute(statement("history/times"), asked)
            for row in await cursor.fetchall():
                found.times[(row["kind"], row["name"]), row["at"], row["what"]][row["bucket"]] = row["n"]
    return found
