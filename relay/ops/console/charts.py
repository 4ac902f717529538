"""Charts as values: where the lines of a series run, with their gaps. The template draws them as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from relay.domain.history import ContextHistory, Of, Point, Series, Times

#: The room of a chart. It is stretched to the width of its place, so all text stands beside it.
WIDTH: Final = 600.0
HEIGHT: Final = 120.0
_TOP: Final = 6.0
#: So much of the width a point without neighbours has.
_ALONE: Final = 3.0


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart. ``tone``: its class, which gives it a colour and a pattern. ``parts``: between gaps."""

    name: str
    tone: str
    parts: Sequence[str]
    last: float | None


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart. ``unit``: ``s`` if its values are seconds, ``/s`` if rates, else counts. ``most``: at its top."""

    title: str
    unit: str
    most: float
    lines: Sequence[Curve]
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Drawn:
    """A mark and where it is: ``x`` of the width."""

    x: float
    at: datetime
    text: str
    actor: str | None


Value = Callable[[Point], float | None]


def charts_of(series: Series) -> Sequence[Chart]:
    """The charts of one series. Those of which nothing is known are left out."""
    points = series.points
    rates: list[tuple[str, str, Value]] = [
        ("done", "first", lambda it: it.rate),
        ("failed", "wrong", lambda it: it.failed / (it.minutes * 60)),
    ]
    found = [
        _chart("Per second", "/s", points, rates),
        _chart("Handling", "s", points, _percentiles(lambda it: it.handling)),
        _chart("From due to done", "s", points, _percentiles(lambda it: it.waited)),
        _chart("Waiting", "", points, [("waiting", "first", lambda it: it.waiting)]),
        _chart("Age of the oldest", "s", points, [("oldest", "first", lambda it: it.oldest_seconds)]),
        _chart("Dead", "", points, [("dead", "wrong", lambda it: it.dead)]),
    ]
    return [it for it in found if any(line.parts for line in it.lines)]


def totals_of(found: ContextHistory) -> Sequence[Chart]:
    """The charts of a whole context: its events, messages and tasks."""
    kinds = [
        (name, tone, _sum([it for it in found.series if it.of is of]))
        for of, name, tone in (
            (Of.OUTBOX, "events", "first"),
            (Of.SUBSCRIPTION, "messages", "second"),
            (Of.TASK, "tasks", "third"),
        )
    ]
    known = [it for it in kinds if it[2]]
    if not known:
        return []
    rate, waiting = ([(name, tone, points, value) for name, tone, points in known] for value in (_rate, _waiting))
    return [_of_lines("Done per second", "/s", rate), _of_lines("Waiting", "", waiting)]


def marks_of(found: ContextHistory) -> Sequence[Drawn]:
    """The marks with their places, the newest first."""
    length = (found.until - found.since).total_seconds()
    return [
        Drawn(
            round(WIDTH * (it.at - found.since).total_seconds() / length, 1),
            it.at,
            f"{it.what} {it.about}" if it.about else it.what,
            it.actor,
        )
        for it in found.marks
    ]


def _rate(point: Point) -> float:
    return point.rate


def _waiting(point: Point) -> float:
    return point.waiting


def _percentiles(times: Callable[[Point], Times | None]) -> list[tuple[str, str, Value]]:
    def value(name: str) -> Value:
        def of(point: Point) -> float | None:
            found = times(point)
            return None if found is None else float(getattr(found, name))

        return of

    return [("p50", "first", value("p50")), ("p95", "second", value("p95")), ("p99", "third", value("p99"))]


def _sum(series: Sequence[Series]) -> Sequence[Point]:
    """The sums of some series, part by part."""
    return [
        Point(
            at=same[0].at,
            minutes=same[0].minutes,
            rate=sum(it.rate for it in same),
            waiting=sum(it.waiting for it in same),
        )
        for same in zip(*(it.points for it in series), strict=True)
    ]


def _last(line: Sequence[float | None]) -> float | None:
    """The last value, if it is not old: the newest part is recorded when it is over."""
    return next((it for it in line[:-3:-1] if it is not None), None)


def _chart(title: str, unit: str, points: Sequence[Point], lines: Iterable[tuple[str, str, Value]]) -> Chart:
    return _of_lines(title, unit, [(name, tone, points, value) for name, tone, value in lines])


def _of_lines(title: str, unit: str, lines: Sequence[tuple[str, str, Sequence[Point], Value]]) -> Chart:
    values = [
        (name, tone, [value(it) if it.minutes else None for it in points]) for name, tone, points, value in lines
    ]
    most = max((it for _, _, line in values for it in line if it is not None), default=0.0)
    points = lines[0][2]
    drawn = [Curve(name, tone, parts_of(line, most or 1.0), _last(line)) for name, tone, line in values]
    return Chart(title, unit, most, drawn, points[0].at, points[-1].at)


def parts_of(values: Sequence[float | None], most: float) -> Sequence[str]:
    """The points of the line between its gaps, as SVG has them."""
    step = WIDTH / max(1, len(values) - 1)
    parts: list[list[tuple[float, float]]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            parts.append([])
        else:
            parts[-1].append((number * step, HEIGHT - (HEIGHT - _TOP) * value / most))
    return [_polyline(part) for part in parts if part]


def _polyline(part: Sequence[tuple[float, float]]) -> str:
    if len(part) == 1:
        [(x, y)] = part
        part = [(max(0.0, x - _ALONE), y), (min(WIDTH, x + _ALONE), y)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in part)
