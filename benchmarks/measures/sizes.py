"""How many bytes a second reach the stream, for events of 1 KB to 900 KB, with a database and without."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from benchmarks.figures import Reference, Row
from benchmarks.layouts import PUBLISHING
from benchmarks.measures.drain import fleet, raw
from benchmarks.stage import Stage
from benchmarks.turns import Case, take_turns
from benchmarks.workload import text_of

_UNIT: Final = "MB/s"
_SIZES: Final = {"1 KB": 1_000, "10 KB": 10_000, "100 KB": 100_000, "900 KB": 900_000}
_MB: Final = 1_000_000


def run(stage: Stage) -> Iterator[Row]:
    """Measure two workers beside (c), with as many bytes of each size, or as many events where those are small."""
    stage.fleet(PUBLISHING, workers=0)
    for name, size in _SIZES.items():
        count = min(stage.sizes.events, max(stage.sizes.megabytes * _MB // size, 1))
        cases: dict[str, Case] = {
            "raw JetStream": partial(_bytes, size, partial(raw, stage, count, text=text_of(size))),
            "two workers": partial(_bytes, size, partial(fleet, stage, 2, count, 200, text=text_of(size))),
        }
        runs = take_turns(stage, f"sizes, {name}", _UNIT, cases)
        reference = Reference("(c) raw JetStream publish", runs["raw JetStream"])
        yield Row(
            measure=f"drain events of {name}, 2 workers", unit=_UNIT, runs=runs["two workers"], reference=reference
        )


def _bytes(size: int, rate: Case) -> float:
    return rate() * size / _MB
