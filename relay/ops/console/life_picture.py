"""Lays out the life of a message: its steps as a list, and as a picture with a lane for each context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from relay.domain.life import Step, StepKind
from relay.domain.time_axis import Axis, Bar

#: The text in the circle of a step.
LETTERS: Final = {
    StepKind.RUN: "R",
    StepKind.EVENT: "E",
    StepKind.PUBLICATION: "S",
    StepKind.MESSAGE: "M",
    StepKind.INCIDENT: "D",
    StepKind.TASK: "T",
    StepKind.ACTION: "A",
}
#: The name of a step.
NAMES: Final = {
    StepKind.RUN: "cron job",
    StepKind.EVENT: "event",
    StepKind.PUBLICATION: "in the stream",
    StepKind.MESSAGE: "delivery",
    StepKind.INCIDENT: "dead letter",
    StepKind.TASK: "task",
    StepKind.ACTION: "operator",
}
_MAX_DRAWN: Final = 80
_STEP_PX: Final = 64
_LANE_PX: Final = 64
_LEFT_PX: Final = 120
_RADIUS_PX: Final = 15
_DEEPEST: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A step in the list. ``number``: from 1, in the order of the list. ``depth``: how far it is indented."""

    number: int
    depth: int
    step: Step
    above: int | None

    @property
    def letter(self) -> str:
        """What stands in its circle."""
        return LETTERS[self.step.kind]

    @property
    def called(self) -> str:
        """What its kind is called."""
        return NAMES[self.step.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A step in the picture, at the middle of its circle."""

    entry: Entry
    x: int
    y: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The picture. ``arcs``: paths from a cause to what it caused. ``left``: how many steps are not drawn."""

    width: int
    height: int
    lanes: Sequence[tuple[str, int]]
    arcs: Sequence[str]
    dots: Sequence[Dot]
    left: int


def entries(steps: Sequence[Step]) -> list[Entry]:
    """All steps in the order of the tree: each before what it caused."""
    return list(_flat(steps, 0, None, iter(range(1, 1_000_000))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A step on the time axis. ``seconds``: how long all its bars are."""

    entry: Entry
    bars: Sequence[Bar]
    seconds: float


def timed(listed: Sequence[Entry]) -> tuple[Axis | None, Sequence[Timed]]:
    """The time axis of steps, and the bars of those that have any; None if all happened at one moment."""
    drawn = [it for it in listed[:_MAX_DRAWN] if it.step.spans]
    axis = Axis.over([time for it in drawn for span in it.step.spans for time in (span.begin, span.end)])
    if axis is None:
        return None, []
    return axis, [
        Timed(entry=it, bars=axis.bars(it.step.spans), seconds=sum(span.seconds for span in it.step.spans))
        for it in drawn
    ]


def _flat(steps: Sequence[Step], depth: int, above: int | None, numbers: Iterator[int]) -> Iterator[Entry]:
    for step in steps:
        number = next(numbers)
        yield Entry(number=number, depth=min(depth, _DEEPEST), step=step, above=above)
        yield from _flat(step.children, depth + 1, number, numbers)


def draw(listed: Sequence[Entry]) -> Drawing:
    """Place steps from left to right in the order of their times, each in the lane of its context."""
    drawn = listed[:_MAX_DRAWN]
    times = _times(drawn)
    order = sorted(drawn, key=lambda it: (times[it.number], it.number))
    lanes = {name: i for i, name in enumerate(dict.fromkeys(it.step.context for it in drawn))}
    dots = {
        entry.number: Dot(
            entry=entry,
            x=_LEFT_PX + _RADIUS_PX * 2 + place * _STEP_PX,
            y=_LANE_PX // 2 + lanes[entry.step.context] * _LANE_PX,
        )
        for place, entry in enumerate(order)
    }
    arcs = [_arc(dots[it.above], dots[it.number]) for it in drawn if it.above in dots]
    return Drawing(
        width=_LEFT_PX + _RADIUS_PX * 4 + max(0, len(order) - 1) * _STEP_PX,
        height=len(lanes) * _LANE_PX,
        lanes=[(name, _LANE_PX // 2 + i * _LANE_PX) for name, i in lanes.items()],
        arcs=arcs,
        dots=list(dots.values()),
        left=len(listed) - len(drawn),
    )


def _times(listed: Sequence[Entry]) -> dict[int, float]:
    """When each step began, by its number. No step begins before its cause, even if the servers' clocks differ."""
    times: dict[int, float] = {}
    for it in listed:
        cause = float("-inf") if it.above is None else times[it.above]
        times[it.number] = max(cause, it.step.at.timestamp() if it.step.at else cause)
    return times


def _arc(cause: Dot, effect: Dot) -> str:
    """A path from one circle's edge to another's. Within a lane it passes above the circles between."""
    begin, end = cause.x + _RADIUS_PX, effect.x - _RADIUS_PX - 3
    if cause.y == effect.y and effect.x - cause.x > _STEP_PX:
        top, edge = cause.y - _LANE_PX // 2 - 4, cause.y - _RADIUS_PX
        return f"M{cause.x},{edge} Q{(cause.x + effect.x) // 2},{top} {effect.x},{edge - 3}"
    middle = (begin + end) // 2
    return f"M{begin},{cause.y} C{middle},{cause.y} {middle},{effect.y} {end},{effect.y}"
