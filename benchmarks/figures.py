"""What a benchmark finds: rows of a table and curves, as plain values."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Reference:
    """What a figure is compared with."""

    name: str
    runs: Sequence[float]

    @property
    def value(self) -> float:
        return statistics.median(self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. ``runs`` holds what each round found; the median counts.

    ``at_least`` and ``at_most`` are what is to be reached: by the ratio if there is a reference, otherwise by the
    value itself. A row with neither is for information.
    """

    measure: str
    unit: str
    runs: Sequence[float]
    reference: Reference | None = None
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def value(self) -> float:
        return statistics.median(self.runs)

    @property
    def ratio(self) -> float | None:
        """How many times the reference; None without one."""
        return self.value / self.reference.value if self.reference else None

    @property
    def met(self) -> bool | None:
        """Whether the row reaches what it should; None when nothing is asked of it."""
        judged = self.value if self.ratio is None else self.ratio
        if self.at_least is not None:
            return judged >= self.at_least
        return None if self.at_most is None else judged <= self.at_most

    @property
    def reach(self) -> str:
        """What is asked of the row, as text."""
        sign, limit = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        if limit is None:
            return ""
        return f"{sign} {limit:g} {'×' if self.reference else self.unit}"

    def as_json(self) -> dict[str, Any]:
        plain = asdict(self)
        if self.reference:
            plain["reference"]["value"] = self.reference.value
        return {**plain, "value": self.value, "ratio": self.ratio, "met": self.met}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """How a figure changes with something else: the points of one line for each name. Only in the JSON file."""

    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Findings:
    """Everything that one run of the benchmark found."""

    rows: list[Row] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)

    def add(self, found: Row | Curve) -> None:
        if isinstance(found, Row):
            self.rows.append(found)
        else:
            self.curves.append(found)

    def as_json(self, conditions: dict[str, Any]) -> dict[str, Any]:
        return {
            "conditions": conditions,
            "rows": [row.as_json() for row in self.rows],
            "curves": [curve.as_json() for curve in self.curves],
        }
