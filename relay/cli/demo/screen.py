"""What the demo shows: a live table on a terminal, plain lines elsewhere, and a summary."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final
from uuid import UUID

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from relay.cli.demo.accounts import Books, Counts, Fault, Latencies, SampleVerdict

_PLAIN_EVERY: Final = 1.0
_MEANING: Final = {
    "committed": "business rows with their event, in one transaction",
    "published": "in the producer's stream",
    "received": "in the consumer's inbox",
    "handled": "answered 200 or 409, and acknowledged",
    "retried": "among them refused at first, or without an answer",
    "dead_lettered": "answered 422, now in the dead-letter stream",
}
_ANSWERS: Final = {
    SampleVerdict.OK: "200",
    SampleVerdict.ALREADY: "409",
    SampleVerdict.POISON: "422",
    SampleVerdict.FLAKY: "503, 503, 200",
    SampleVerdict.SLOW: "no answer in time, then 200",
}
_STATUS: Final = {504: "no answer"}


class Screen:
    """Shows counts while they change."""

    def __init__(self, console: Console, expected: int) -> None:
        self._console = console
        self._expected = expected
        self._begin = time.monotonic()
        self._live: Live | None = None
        self._last_plain = -math.inf

    @contextmanager
    def open(self) -> Iterator[None]:
        """Show the table within the block."""
        self._begin = time.monotonic()
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False) as self._live:
            yield

    def show(self, counts: Counts, *, last: bool = False) -> None:
        """Show the latest counts. Plain lines appear at most once a second; ``last`` always prints one."""
        seconds = time.monotonic() - self._begin
        if self._live is not None:
            self._live.update(self._table(counts, seconds), refresh=True)
        elif last or seconds - self._last_plain >= _PLAIN_EVERY:
            self._last_plain = seconds
            figures = "  ".join(f"{_words(name)} {count}" for name, count in asdict(counts).items())
            self._console.print(f"{seconds:5.1f} s  {figures}", soft_wrap=True, highlight=False)

    def _table(self, counts: Counts, seconds: float) -> RenderableType:
        table = Table(box=None, pad_edge=False)
        table.add_column(f"{seconds:.0f} s", style="bold", width=13)
        table.add_column("events", justify="right", width=6)
        table.add_column("", width=24)
        table.add_column("", style="dim")
        for name, count in asdict(counts).items():
            color = "red" if name == "dead_lettered" else "yellow" if name == "retried" else "green"
            bar = ProgressBar(total=self._expected, completed=count, complete_style=color, finished_style=color)
            table.add_row(_words(name), str(count), bar, _MEANING[name])
        return table


def summarise(console: Console, books: Books, answers: Mapping[UUID, Sequence[int]], latencies: Latencies) -> None:
    """Print what the handler had to answer, what happened, and how long events took."""
    console.print()
    console.print(_outcomes(books, answers))
    console.print()
    console.print(_latencies(latencies))
    console.print()


def verdict(console: Console, books: Books, faults: Sequence[Fault]) -> None:
    """Print whether the accounts balance, and if not, what is missing."""
    handled, dead = len(books.handled), len(books.dead_lettered)
    balance(
        console,
        faults,
        [
            f"{len(books.committed)} committed = {handled} handled + {dead} dead-lettered",
            f"{len(books.rolled_back)} rolled back, none of them delivered",
            f"{len(books.effects)} effects, none of them twice",
            "0 messages unacknowledged in JetStream",
        ],
    )


def balance(console: Console, faults: Sequence[object], sums: Sequence[str]) -> None:
    """Print the faults, or the sums if there are none."""
    if faults:
        console.print(Text("The accounts do not balance.", style="bold red"))
        for fault in faults:
            console.print(f"  {fault}", soft_wrap=True, highlight=False, markup=False)
        return
    console.print(Text("The accounts balance.", style="bold green"))
    for line in sums:
        console.print(f"  {line}")


def _outcomes(books: Books, answers: Mapping[UUID, Sequence[int]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("asked of the handler", "its answers"):
        table.add_column(heading)
    for heading in ("events", "handled", "dead", "effects"):
        table.add_column(heading, justify="right")
    effects = Counter(books.effects)
    for kind in SampleVerdict:
        ids = {id for id, verdict in books.committed.items() if verdict is kind}
        given = Counter(
            ", ".join(_STATUS.get(status, str(status)) for status in answers.get(id, ())) for id in ids
        )
        table.add_row(
            _ANSWERS[kind],
            "; ".join(f"{text or 'never asked'} ({count})" for text, count in given.most_common(3)),
            str(len(ids)),
            str(len(ids & books.handled)),
            str(len(ids & books.dead_lettered)),
            str(sum(effects[id] for id in ids)),
        )
    table.add_row(
        "rolled back", "", str(len(books.rolled_back)), "", "", str(sum(effects[id] for id in books.rolled_back))
    )
    return table


def _latencies(latencies: Latencies) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("milliseconds from the commit to")
    for heading in ("events", "p50", "p95", "p99", "max"):
        table.add_column(heading, justify="right")
    table.add_row("published", *_percentiles(latencies.published))
    table.add_row("handled, at the first attempt", *_percentiles(latencies.handled))
    return table


def _percentiles(seconds: Sequence[float]) -> list[str]:
    return [str(len(seconds)), *(_milliseconds(percentile(seconds, share)) for share in (0.5, 0.95, 0.99, 1.0))]


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least ``share`` of all values do not exceed. None without values."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f}"


def _words(name: str) -> str:
    return name.replace("_", "-")
