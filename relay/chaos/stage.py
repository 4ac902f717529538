"""What a fault has to hand: the rig, chance, the history it writes to, and how long faults last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from relay.chaos.history import History
from relay.chaos.rig import Rig

#: Commits rows that can never be published; the workload's own, see `nemesis.Nemesis`.
Poison: TypeAlias = Callable[[], object]


@dataclass(slots=True)
class Stage:
    """One fault's surroundings. ``hold``: the seconds, least and most, for which a lasting fault stays.

    ``over``: set when the run ends, and everything is to be healed at once.
    """

    rig: Rig
    random: Random
    history: History
    number: int
    hold: tuple[float, float] = (5.0, 30.0)
    poison: Poison | None = None
    over: threading.Event = field(default_factory=threading.Event)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say something that the record of the fault is to tell."""
        self.notes.append(text)

    def stay(self, share: float) -> None:
        """Let the fault last: a random time within ``share`` of ``hold``, less when the run ends."""
        least, most = self.hold
        self.over.wait(self.random.uniform(least, most) * share)


#: Injects a fault at a target when entered, and heals it when left, whatever happened meanwhile.
Injection: TypeAlias = Callable[[Stage, str], AbstractContextManager[None]]
