"""The timeline of a run as inline SVG: faults by kind, throughput and backlog over one axis of time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, TypeAlias

from chaos.evidence import Evidence
from chaos.history import Fault, Sample

WIDTH: Final = 960
LEFT: Final = 196
RIGHT: Final = 944
ROW: Final = 17
#: Letters of a kind of fault that fit beside its row.
LETTERS: Final = 28
#: Steps of the time axis that people count in, in seconds.
TIMES: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
#: Points of a line. A run of a day has 86,400 samples, and the figure fewer columns.
POINTS: Final = 390

Point: TypeAlias = tuple[float, float | None]
Count: TypeAlias = Callable[[Sample], int | None]


@dataclass(frozen=True, slots=True)
class Axis:
    """The time that the figure shows, from the first record on."""

    begin: float
    end: float

    def x(self, at: float) -> float:
        """The column of a moment."""
        share = (at - self.begin) / (self.end - self.begin)
        return LEFT + max(0.0, min(1.0, share)) * (RIGHT - LEFT)


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of a panel."""

    name: str
    style: str
    points: Sequence[Point]


def timeline(evidence: Evidence) -> str:
    """The figure, or an empty string when nothing was sampled."""
    samples = sorted(evidence.samples, key=lambda sample: sample.at)
    if len(samples) < 2:
        return ""
    axis = Axis(samples[0].at, max([samples[-1].at, *(fault.ended for fault in evidence.faults)]))
    kinds = sorted({fault.kind for fault in evidence.faults})
    speed = (
        Line("published", "one", _rates(samples, lambda sample: sample.published)),
        Line("handled", "two", _rates(samples, lambda sample: sample.handled)),
    )
    waiting = (
        Line("outbox", "one", _levels(samples, lambda sample: sample.outbox)),
        Line("inbox", "two", _levels(samples, lambda sample: sample.inbox)),
    )
    top = 26 + ROW * len(kinds)
    parts = [
        _fault_rows(axis, evidence.faults, kinds),
        _panel(axis, evidence.faults, "Events per second", speed, top + 40, 170),
        _panel(axis, evidence.faults, "Events waiting", waiting, top + 260, 130),
        _time_axis(axis, top + 390),
    ]
    label = "Faults by kind, events published and handled per second, and events waiting, over the time of the run"
    view = f"0 0 {WIDTH} {top + 428}"
    return f'<svg role="img" aria-label="{label}" viewBox="{view}">{"".join(parts)}</svg>'


# --- series -------------------------------------------------------------------------------------


def _chunks(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    size = math.ceil(len(samples) / POINTS)
    return [samples[start : start + size] for start in range(0, len(samples), size)]


def _levels(samples: Sequence[Sample], count: Count) -> list[Point]:
    """The highest count of each stretch; None where nothing is known."""
    return [
        (chunk[-1].at, max((found for sample in chunk if (found := count(sample)) is not None), default=None))
        for chunk in _chunks(samples)
    ]


def _rates(samples: Sequence[Sample], count: Count) -> list[Point]:
    """The growth of each stretch per second. A count that falls because events leave again is no negative work."""
    points: list[Point] = []
    before: tuple[float, int] | None = None
    for chunk in _chunks(samples):
        known = [(sample.at, found) for sample in chunk if (found := count(sample)) is not None]
        points.append((chunk[-1].at, _rate(before, known[-1]) if before and known else None))
        before = known[-1] if known else before
    return points


def _rate(before: tuple[float, int], now: tuple[float, int]) -> float | None:
    seconds = now[0] - before[0]
    return max(0, now[1] - before[1]) / seconds if seconds > 0 else None


def steps(most: float, count: int) -> list[float]:
    """Round numbers from 0 to the first one that is not below ``most``, about ``count`` of them."""
    rough = max(most, 1) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [step * number for number in range(math.ceil(max(most, 1) / step - 1e-9) + 1)]


# --- drawing ------------------------------------------------------------------------------------


def _fault_rows(axis: Axis, faults: Iterable[Fault], kinds: list[str]) -> str:
    rows = {kind: 24 + ROW * number for number, kind in enumerate(kinds)}
    labels = "".join(_text(LEFT - 8, top + 11, _short(kind), "end") for kind, top in rows.items())
    grid = "".join(_rule(top + ROW - 2) for top in rows.values())
    bars = "".join(_bar(axis, fault, rows[fault.kind], ROW - 5, "bar", 3) for fault in faults)
    return _text(LEFT, 14, "Faults" if kinds else "No faults", "start", "title") + grid + labels + bars


def _short(kind: str) -> str:
    """The whole name is in the title of each bar."""
    return kind if len(kind) <= LETTERS else kind[: LETTERS - 1] + "…"


def _panel(axis: Axis, faults: Iterable[Fault], title: str, lines: Sequence[Line], top: int, height: int) -> str:
    values = [value for line in lines for _, value in line.points if value is not None]
    ticks = steps(max(values, default=1), 4)
    scale = height / ticks[-1]
    grid = "".join(_rule(top + height - tick * scale) for tick in ticks)
    labels = "".join(_text(LEFT - 8, top + height - tick * scale + 4, f"{tick:,.0f}", "end") for tick in ticks)
    bands = "".join(_bar(axis, fault, top, height, "band", 1) for fault in faults)
    curves = "".join(_curve(axis, line, top + height, scale) for line in lines)
    return (
        _text(LEFT, top - 12, title, "start", "title") + bands + grid + labels + curves + _legend(lines, top - 16)
    )


def _legend(lines: Sequence[Line], middle: float) -> str:
    parts = []
    for number, line in enumerate(lines):
        x = RIGHT - 104 * (len(lines) - number) + 8
        parts.append(f'<polyline class="{line.style}" points="{x},{middle} {x + 28},{middle}"/>')
        parts.append(_text(x + 34, middle + 4, line.name, "start"))
    return "".join(parts)


def _curve(axis: Axis, line: Line, bottom: float, scale: float) -> str:
    """A stretch of line for every stretch of known values."""
    stretches: list[list[str]] = [[]]
    for at, value in line.points:
        if value is None:
            stretches.append([])
        else:
            stretches[-1].append(f"{axis.x(at):.1f},{bottom - value * scale:.1f}")
    return "".join(f'<polyline class="{line.style}" points="{" ".join(part)}"/>' for part in stretches if part)


def _bar(axis: Axis, fault: Fault, top: float, height: float, style: str, least: float) -> str:
    left = axis.x(fault.began)
    width = max(least, axis.x(fault.ended) - left)
    moment, lasted = clock(fault.began - axis.begin), fault.ended - fault.began
    note = f": {fault.note}" if fault.note else ""
    title = escape(f"{fault.number}. {fault.kind}, {fault.target}, at {moment} for {lasted:.1f} s{note}")
    place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{style}" {place}><title>{title}</title></rect>'


def _time_axis(axis: Axis, top: float) -> str:
    seconds = axis.end - axis.begin
    step = next((step for step in TIMES if step * 9 >= seconds), TIMES[-1])
    ticks = range(0, int(seconds) + 1, step)
    labels = "".join(_text(axis.x(axis.begin + tick), top + 16, clock(tick), "middle") for tick in ticks)
    return labels + _text((LEFT + RIGHT) / 2, top + 34, "time since the first sample", "middle")


def clock(seconds: float) -> str:
    """A length of time as minutes and seconds, with hours if there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _rule(y: float) -> str:
    return f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
