"""When something waited, worked and backed off: spans of time, and their places on an axis of a whole life."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from relay.domain.attempts import Attempt
from relay.domain.durations import duration

#: About so many marks are on an axis.
_MARKS: Final = 5
_STEPS_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800),
    *(3_600, 7_200, 14_400, 28_800, 43_200, 86_400, 172_800, 604_800, 2_592_000, 31_536_000),
)
#: A bar is at least this part of the axis, so that it can be seen.
_LEAST: Final = 0.004


class SpanKind(StrEnum):
    """What a row did. ``unknown``: it waited and worked, and nothing says when it began to work."""

    WAITING = "waiting"
    WORKING = "working"
    BACK_OFF = "back-off"
    UNKNOWN = "waiting or working"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the life of a row, ``open`` if it still goes on."""

    kind: SpanKind
    begin: datetime
    end: datetime
    open: bool = False

    @property
    def seconds(self) -> float:
        """How long it was, or is so far."""
        return (self.end - self.begin).total_seconds()


def spans(
    begin: datetime | None,
    ended: datetime | None,
    attempts: Sequence[Attempt],
    now: datetime,
    *,
    started: datetime | None = None,
    due: datetime | None = None,
) -> list[Stretch]:
    """What a row did from ``begin`` until it ``ended``, or until ``now``. No two spans overlap.

    ``started``: when its last attempt began, if its notes do not say so. ``due``: until when its producer
    delayed it, which is back-off, too.
    """
    if begin is None:
        return []
    return list(_spans(begin, ended, attempts, now, started, due))


def _spans(
    begin: datetime,
    ended: datetime | None,
    attempts: Sequence[Attempt],
    now: datetime,
    started: datetime | None,
    due: datetime | None,
) -> Iterator[Stretch]:
    at, off = begin, due
    for it in attempts:
        end = it.ended or (now if it.outcome == "running" else None)
        last = it is attempts[-1]
        start = it.began or (started if last else None)
        if end is None or end < at:
            continue
        if off is not None and off > at:
            yield Stretch(SpanKind.BACK_OFF, at, min(off, start or end, end))
            at = min(off, start or end, end)
        if start is None:
            yield Stretch(SpanKind.UNKNOWN, at, end)
        else:
            start = min(max(start, at), end)
            if start > at:
                yield Stretch(SpanKind.WAITING, at, start)
            yield Stretch(SpanKind.WORKING, start, end, open=it.outcome == "running")
        at, off = end, it.next_at
    last_end = ended or now
    if last_end <= at or (ended is not None and attempts):
        return
    if off is not None and off > at:
        yield Stretch(SpanKind.BACK_OFF, at, min(off, last_end), open=ended is None and off > last_end)
        at = min(off, last_end)
    if last_end > at:
        yield Stretch(SpanKind.WAITING, at, last_end, open=ended is None)


@dataclass(frozen=True, slots=True)
class Bar:
    """A span on an axis: ``left`` and ``width`` are parts of it, from 0 to 1."""

    kind: SpanKind
    left: float
    width: float
    seconds: float
    open: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {duration(self.seconds)}{' so far' if self.open else ''}"


@dataclass(frozen=True, slots=True)
class Axis:
    """From ``begin`` to ``end``, with ``marks``: parts of it, and how long after its beginning they are."""

    begin: datetime
    end: datetime

    @classmethod
    def over(cls, times: Sequence[datetime]) -> Axis | None:
        """The axis that has all times; None if there are fewer than two."""
        if not times or min(times) == max(times):
            return None
        return cls(min(times), max(times))

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end - self.begin).total_seconds()

    @property
    def marks(self) -> list[tuple[float, str]]:
        """Where it is marked, at round numbers, and with what."""
        step = next((it for it in _STEPS_S if self.seconds / it <= _MARKS), self.seconds)
        times = [it * step for it in range(1, int(self.seconds / step) + 1)]
        return [(time / self.seconds, f"+{duration(time)}") for time in times]

    def part(self, time: datetime) -> float:
        """Where a time is, from 0 to 1."""
        return min(1.0, max(0.0, (time - self.begin) / timedelta(seconds=self.seconds)))

    def bars(self, found: Sequence[Stretch]) -> list[Bar]:
        """The bars of spans."""
        placed = []
        for it in found:
            left = min(self.part(it.begin), 1 - _LEAST)
            width = max(self.part(it.end) - left, _LEAST)
            placed.append(Bar(it.kind, left, width, it.seconds, it.open))
        return placed
