"""Curves as SVG files that stand on their own and follow the reader's light or dark scheme."""

from __future__ import annotations

import math
from html import escape
from typing import Final

from benchmarks.figures import Curve
from chaos.chart import steps

WIDTH: Final = 720
HEIGHT: Final = 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 700, 66, 340
_STYLE: Final = """
svg { background: #fff; font: 13px system-ui, sans-serif; }
text { fill: #1c2127; } .soft { fill: #59626d; } .title { font-size: 15px; font-weight: 600; }
.grid { stroke: #d5dae0; } .line { fill: none; stroke-width: 2; }
.c0 { stroke: #0b63b5; } .c1 { stroke: #b3500a; } .c2 { stroke: #7a4fbf; }
@media (prefers-color-scheme: dark) {
  svg { background: #14181d; } text { fill: #e6eaee; } .soft { fill: #a3adb8; } .grid { stroke: #353d47; }
  .c0 { stroke: #6cb6ff; } .c1 { stroke: #f2a45c; } .c2 { stroke: #b99af0; }
}
"""


def svg(curve: Curve) -> str:
    """Draw a curve."""
    axes = _Axes(curve)
    label = escape(f"{curve.title}: {curve.y} over {curve.x}")
    parts = [
        f"<style>{_STYLE}</style>",
        _text(_LEFT, 24, curve.title, "start", "title"),
        _text(_LEFT, 46, curve.y, "start", "soft"),
        *(_horizontal(axes.y(tick), f"{tick:,.10g}") for tick in axes.ticks_y),
        *(_text(axes.x(tick), _BOTTOM + 20, f"{tick:,.10g}", "middle") for tick in axes.ticks_x),
        _text((_LEFT + _RIGHT) / 2, _BOTTOM + 42, curve.x, "middle", "soft"),
        *(_line(axes, number, points) for number, points in enumerate(curve.lines.values())),
        _legend(list(curve.lines)),
    ]
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" {size}>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


class _Axes:
    """Where values lie. The vertical axis begins at zero."""

    def __init__(self, curve: Curve) -> None:
        points = [point for line in curve.lines.values() for point in line]
        xs = [x for x, _ in points]
        self._logarithmic = curve.logarithmic
        self.ticks_y = steps(max(y for _, y in points), 5)
        self.ticks_x = _powers(min(xs), max(xs)) if curve.logarithmic else steps(max(xs), 6)
        self._from, self._to = self._scaled(self.ticks_x[0]), self._scaled(self.ticks_x[-1])

    def x(self, value: float) -> float:
        return _LEFT + (self._scaled(value) - self._from) / (self._to - self._from) * (_RIGHT - _LEFT)

    def y(self, value: float) -> float:
        return _BOTTOM - value / self.ticks_y[-1] * (_BOTTOM - _TOP)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self._logarithmic else value


def _powers(least: float, most: float) -> list[float]:
    """Powers of ten around all values, at least two of them."""
    first = math.floor(math.log10(least))
    last = max(first + 1, math.ceil(math.log10(most)))
    return [10.0**power for power in range(first, last + 1)]


def _line(axes: _Axes, number: int, points: list[tuple[float, float]]) -> str:
    places = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points)
    return f'<polyline class="line c{number % 3}" points="{places}"/>'


def _legend(names: list[str]) -> str:
    parts = []
    for number, name in enumerate(names):
        x = _RIGHT - 140 * (len(names) - number) + 20
        parts.append(f'<polyline class="line c{number % 3}" points="{x},42 {x + 22},42"/>')
        parts.append(_text(x + 28, 46, name, "start"))
    return "".join(parts)


def _horizontal(y: float, label: str) -> str:
    rule = f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return rule + _text(_LEFT - 8, y + 4, label, "end")


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
