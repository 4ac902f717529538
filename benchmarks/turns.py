"""How figures are taken: the cases take turns, so that a busy moment of the machine hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.stage import Stage

Case = Callable[[], float]


def take_turns(stage: Stage, measure: str, unit: str, cases: Mapping[str, Case]) -> dict[str, list[float]]:
    """Run every case once a round; returns what each round found."""
    runs: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(1, stage.rounds + 1):
        for name, case in cases.items():
            found = case()
            runs[name].append(found)
            stage.say(f"{measure}: {name}: {found:,.4g} {unit} ({number} of {stage.rounds})")
    return runs


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of all values do not exceed (the nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def wait_until(what: str, condition: Callable[[], object], *, seconds: float = 1800, every: float = 0.01) -> None:
    """Poll until ``condition`` holds; raises TimeoutError naming ``what``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(every)
