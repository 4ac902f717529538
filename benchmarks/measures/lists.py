"""What publishing loses while people look at lists of a large table, and how long these lists take meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from benchmarks.figures import Reference, Row
from benchmarks.layouts import PUBLISHING
from benchmarks.looking import PATHS, Looking, Seen
from benchmarks.measures.archive import at_once, prepared, steadily
from benchmarks.stage import Stage
from benchmarks.turns import Case, percentile, take_turns

_EVENTS: Final = "events/s"
#: Requests a second; and so few that the database is asked for as much: `relay ops` looks up a list once a second.
_RATE: Final = 200
_FEW: Final = len(PATHS)

#: Publishes something; returns events a second.
Publish = Callable[[Stage, str], float]


def run(stage: Stage) -> Iterator[Row]:
    """Publish beside those who look and without them, in turns, into a table that is full of published events."""
    prepared(stage)
    yield from _beside(stage, "4,000 events/s", steadily, 0.95)
    yield from _beside(stage, f"drain {stage.sizes.events:,} events", at_once, None)


def _beside(stage: Stage, what: str, publish: Publish, at_least: float | None) -> Iterator[Row]:
    seen: list[Seen] = []
    seldom: list[Seen] = []
    url = stage.fleet(PUBLISHING).url("bench")
    cases: dict[str, Case] = {
        "without": partial(publish, stage, url),
        "beside lists": partial(_looked_at, stage, url, publish, _RATE, seen),
        "beside few": partial(_looked_at, stage, url, publish, _FEW, seldom),
    }
    runs = take_turns(stage, f"lists, {what}", _EVENTS, cases)
    measure = f"{what}, {_RATE} lists a second of {stage.sizes.archived:,} events beside"
    without = Reference("without", runs["without"])
    yield Row(measure=measure, unit=_EVENTS, runs=runs["beside lists"], reference=without, at_least=at_least)
    few = f"the same beside {_FEW} lists a second, which the database reads as often"
    yield Row(measure=few, unit=_EVENTS, runs=runs["beside few"], reference=without)
    yield Row(measure=f"lists answered meanwhile, of {_RATE}", unit="requests/s", runs=[it.rate for it in seen])
    for share in (0.5, 0.99):
        runs_of = [percentile(it.took, share) for it in seen]
        yield Row(measure=f"the same, from when each was due, p{100 * share:.0f}", unit="ms", runs=runs_of)
    used = [100 * it.cpu / it.seconds for it in seen]
    yield Row(measure="relay ops meanwhile", unit="% of a core", runs=used)


def _looked_at(stage: Stage, url: str, publish: Publish, rate: float, seen: list[Seen]) -> float:
    with Looking(stage.fleet(PUBLISHING), "bench", rate) as looking:
        found = publish(stage, url)
    seen.append(looking.seen)
    return found
