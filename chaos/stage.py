"""What a fault can use: the rig, a random source, the history, and how long faults last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from random import Random
from typing import TypeAlias

from chaos.history import History
from chaos.rig import Rig

#: Commits so many events of a special kind; the workload's own, see `workload.Workload.burst`.
Burst: TypeAlias = Callable[[str, int], object]


@dataclass(slots=True)
class Stage:
    """One fault's surroundings. ``hold``: the seconds, least and most, for which a lasting fault stays.

    ``over``: set when the run ends, and everything is to be healed at once. ``catch_up``: the seconds that a fleet
    may take to handle what earlier faults left behind. ``hanging``: how many messages wait for the handler that
    hangs. ``failing``: how many come together for which a handler always fails.
    """

    rig: Rig
    random: Random
    history: History
    number: int
    hold: tuple[float, float] = (5.0, 30.0)
    burst: Burst | None = None
    catch_up: float = 60.0
    hanging: int = 60
    failing: int = 60
    over: threading.Event = field(default_factory=threading.Event)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a text to the record of the fault."""
        self.notes.append(text)

    def stay(self, share: float, at_least: float = 0.0) -> None:
        """Let the fault last: a random time within ``share`` of ``hold``, less when the run ends."""
        least, most = self.hold
        self.over.wait(max(at_least, self.random.uniform(least, most) * share))

    def commit(self, what: str, count: int) -> None:
        """Have the workload commit events of a special kind: see `workload.Workload.burst`."""
        if self.burst is None:
            self.note("there is no workload")
        else:
            self.burst(what, count)


#: Injects a fault at a target when entered, and heals it when left, whatever happened meanwhile.
Injection: TypeAlias = Callable[[Stage, str], AbstractContextManager[None]]
#: Heals a fault.
Heal: TypeAlias = Callable[[], object]


def lasting(begin: Callable[[Stage, str], Heal]) -> Injection:
    """Turn a function that begins a fault and returns its healing into an injection."""

    @contextmanager
    @wraps(begin)
    def inject(stage: Stage, target: str) -> Iterator[None]:
        heal = begin(stage, target)
        try:
            yield
        finally:
            heal()

    return inject
