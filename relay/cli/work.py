"""A subscription or a type of tasks at the command line: what waits, runs and fails, and what it did lately."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

from relay.bus import QueryBus
from relay.cli.options import asking, print_json
from relay.cli.tables import print_fields
from relay.cli.top import sparkline
from relay.domain.disclosure import clean
from relay.domain.durations import duration
from relay.domain.history import Of, Point
from relay.domain.work import WaitsForVersion, Work
from relay.ops.servers import answer_for_servers
from relay.ops.work import ReadWork, Works
from relay.settings import ContextSettings, load_settings

_BARS = 60


def show_work(chosen: ContextSettings, of: Literal[Of.SUBSCRIPTION, Of.TASK], name: str, *, as_json: bool) -> None:
    """Print one. Raises NothingFound and UnknownControl."""
    found = asyncio.run(_read(chosen, ReadWork(context=chosen.name, of=of, name=name)))
    now = datetime.now(UTC)
    if as_json:
        print_json(found.as_dict(now))
    else:
        print_fields(dict(_fields(found, now)))


async def _read(chosen: ContextSettings, asked: ReadWork) -> Work:
    bus = answer_for_servers(QueryBus(), load_settings())
    return (await Works({chosen.name: chosen}, asking, bus).answer().ask_async(asked)).unwrap()


def _fields(found: Work, now: datetime) -> Iterator[tuple[str, Any]]:
    shown, rows, series = found.as_dict(now), found.rows, found.series
    for name in ("context", "name", "state", "until", "by", "reason", "limit"):
        yield name, shown[name]
    yield (
        "rows",
        [f"{it.count} {it.state}, oldest {duration(it.oldest_seconds)}" for it in rows.states] or ["none"],
    )
    if rows.parked_keys:
        yield "parked keys", rows.parked_keys
    if rows.away is not None:
        yield "handler is away", f"for {duration(rows.away.seconds)}: {clean(rows.away.reason)}"
    yield "why", [f"{it.state}: {it.count} {it.code}: {clean(it.text)}" for it in rows.causes] or None
    if found.versions:
        yield "waits for", [_awaited(it) for it in found.versions]
    if found.lag is not None:
        lag = found.lag
        yield "in the stream", f"{lag.to_come} to come, {lag.in_flight} of {lag.window} in flight"
    yield (
        "runs",
        [f"{it.id} for {duration(it.seconds(now))}, attempt {it.attempts}" for it in found.running] or None,
    )
    if series is not None:
        for name, point in (("now", series.now), ("an hour ago", series.hour_ago), ("a day ago", series.day_ago)):
            yield name, None if point is None else _told(point)
        yield "last hour", sparkline(series.points, _BARS)
    yield "queues", list(rows.queues) or None
    for name, value in found.settings.items():
        yield name.replace("_", " "), value


def _awaited(it: WaitsForVersion) -> str:
    known = ", ".join(f"{one.workers} of {one.release}" for one in it.releases or () if one.handles)
    waits = f"{it.count} for {it.event_type} v{it.event_version}, oldest {duration(it.seconds)}"
    return f"{waits}; workers: {'unknown' if it.releases is None else known or 'none'}"


def _told(point: Point) -> str:
    times = point.handling or point.waited
    taken = f", p95 {duration(times.p95)}" if times else ""
    return f"{point.rate:.1f}/s{taken}, {point.failed} failed, {point.waiting} waiting, {point.dead} dead"
