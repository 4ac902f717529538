"""A seeded schedule of faults: every kind once before any comes again, at times two at once, always healed."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from relay.chaos.faults import FAULTS, Kind
from relay.chaos.history import Fault, History
from relay.chaos.rig import Rig
from relay.chaos.stage import Poison, Stage

#: How often a second fault strikes together with the first.
_TWO_AT_ONCE: Final = 0.2
_FLUSH_EVERY: Final = 5.0


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault to come: what, where, and the chance that decides its details."""

    kind: Kind
    target: str
    seed: int

    @property
    def needs(self) -> frozenset[str]:
        """What it must have to itself."""
        return self.kind.touches | {self.target}


class Nemesis:
    """Strikes a rig again and again until its time is over or it is stopped. Used once.

    ``every``: least and most seconds between a heal and the next fault. ``hold``: least and most seconds for which
    a lasting fault stays. ``kinds``: names in `faults.FAULTS`, None for all. ``poison``: commits rows that can
    never be published. The same seed gives the same faults at the same targets in the same order.
    """

    def __init__(
        self,
        rig: Rig,
        history: History,
        seed: int,
        *,
        every: tuple[float, float] = (3.0, 8.0),
        hold: tuple[float, float] = (5.0, 30.0),
        kinds: Collection[str] | None = None,
        poison: Poison | None = None,
    ) -> None:
        self._rig, self._history = rig, history
        self._random = Random(seed)  # noqa: S311 - repeatable, not secret
        self._every, self._hold = every, hold
        self._poison = poison
        self._deck = self._shuffled(_chosen(kinds, poison))
        self._postponed: Strike | None = None
        self._over = threading.Event()
        self._number = 0

    def run(self, until: float) -> None:
        """Strike until ``until`` (of `time.monotonic`); every fault is healed when this returns.

        What goes wrong with a fault is recorded with it, and raised.
        """
        with self._ended_at(until), ThreadPoolExecutor(2, thread_name_prefix="chaos-fault") as pool:
            while not self._over.wait(self._random.uniform(*self._every)):
                for done in [pool.submit(self._strike, strike, self._next_number()) for strike in self._draw()]:
                    done.result()

    def run_liveness(self, until: float) -> None:
        """Take one worker and one scheduler away for good and flush Valkey every 5 s: nothing else heals."""
        began = time.time()
        gone = [self._random.choice(self._rig.of_role(role)) for role in ("worker", "scheduler")]
        for process in gone:
            process.retire()
        flush = Strike(FAULTS["valkey-flush"], "valkey", 0)
        try:
            with self._ended_at(until):
                while not self._over.wait(_FLUSH_EVERY):
                    self._strike(flush, self._next_number())
        finally:
            for process in gone:
                kind = f"{process.role}-gone"
                self._history.write(Fault(self._next_number(), kind, process.name, began, time.time()))

    def stop(self) -> None:
        """Heal what is under way and strike no more; callable from any thread."""
        self._over.set()

    # --- how ---

    @contextmanager
    def _ended_at(self, until: float) -> Iterator[None]:
        """Within the block, `stop` is called when the time has come, and at the end."""
        alarm = threading.Timer(max(0.0, until - time.monotonic()), self.stop)
        alarm.start()
        try:
            yield
        finally:
            alarm.cancel()
            self.stop()

    def _draw(self) -> list[Strike]:
        """Return the next fault, or two that do not meet."""
        strikes = [self._next_strike()]
        if self._random.random() < _TWO_AT_ONCE:
            second = self._next_strike()
            if strikes[0].needs.isdisjoint(second.needs):
                strikes.append(second)
            else:  # they would heal each other's faults: one after the other
                self._postponed = second
        return strikes

    def _next_strike(self) -> Strike:
        if self._postponed is not None:
            strike, self._postponed = self._postponed, None
            return strike
        kind = next(self._deck)
        return Strike(kind, self._random.choice(kind.targets(self._rig)), self._random.getrandbits(32))

    def _strike(self, strike: Strike, number: int) -> None:
        stage = Stage(
            rig=self._rig,
            random=Random(strike.seed),  # noqa: S311 - repeatable, not secret
            history=self._history,
            number=number,
            hold=self._hold,
            poison=self._poison,
            over=self._over,
        )
        strike.kind.strike(stage, strike.target)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _shuffled(self, kinds: list[Kind]) -> Iterator[Kind]:
        while True:
            yield from self._random.sample(kinds, len(kinds))


def _chosen(names: Collection[str] | None, poison: Poison | None) -> list[Kind]:
    if names is not None:
        return [FAULTS[name] for name in FAULTS if name in names]
    return [kind for kind in FAULTS.values() if poison is not None or kind.name != "poison-rows"]
