"""The findings as text: a table for the terminal, and one in Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from benchmarks.figures import Row

HEADINGS: Final = ("measure", "measured", "reference", "ratio", "reach", "met")
_VERDICTS: Final = {True: "yes", False: "NO", None: ""}
#: The columns of figures, which end flush.
_RIGHT: Final = {1, 3}


def terminal(rows: Sequence[Row]) -> str:
    """Columns that line up."""
    lines = [HEADINGS, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join("  ".join(_padded(line, widths)).rstrip() for line in lines)


def markdown(rows: Sequence[Row], conditions: dict[str, Any]) -> str:
    """Return a table for a page, and below it what it was measured on."""
    marks = ["--:" if column in _RIGHT else "---" for column in range(len(HEADINGS))]
    lines = [HEADINGS, marks, *map(_cells, rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{'; '.join(f'{name}: {value}' for name, value in conditions.items())}."


def _cells(row: Row) -> tuple[str, ...]:
    reference = f"{row.reference.name}: {_number(row.reference.value)}" if row.reference else ""
    ratio = "" if row.ratio is None else f"{row.ratio:.2f} ×"
    measured = f"{_number(row.value)} {row.unit}"
    return row.measure, measured, reference, ratio, row.reach, _VERDICTS[row.met]


def _number(value: float) -> str:
    """Format with three digits, which is more than a repeated run confirms."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _padded(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if column in _RIGHT else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
