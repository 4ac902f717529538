"""A seeded schedule of faults: each kind once before any repeats, many during others, all of them healed."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from chaos.faults import ALONE, EARLY, FAULTS, IN_LIVENESS, Kind
from chaos.history import Fault, History
from chaos.rig import Rig
from chaos.stage import Burst, Stage

#: The share of faults that begin while others last, and how many may last at once.
_JOINS: Final = 0.6
_AT_ONCE: Final = 3
#: Faults that come early are among the first so many.
_EARLY: Final = 5
_FLUSH_EVERY: Final = 5.0
_LOOK: Final = 0.1


@dataclass(frozen=True, slots=True)
class Strike:
    """A planned fault: its kind, its target, and the random source for its details.

    ``after``: seconds to wait after it could begin. ``joins``: whether it begins while others last.
    """

    kind: Kind
    target: str
    seed: int
    after: float = 0.0
    joins: bool = False

    @property
    def needs(self) -> frozenset[str]:
        """What no other fault may touch meanwhile."""
        return self.kind.touches | {self.target}

    def meets(self, other: Strike) -> bool:
        """Tell whether one of the two faults would heal or hide the other."""
        return not self.needs.isdisjoint(other.needs) or ALONE in self.needs | other.needs


class Nemesis:
    """Strikes a rig again and again until its time is over or it is stopped. Used once.

    ``every``: least and most seconds to the next fault, after the last was healed, or began if the next one joins
    it. ``hold``: least and most seconds for which a lasting fault stays. ``kinds``: names in `faults.FAULTS`, None
    for all. ``burst`` and ``hanging``: see `stage.Stage`. The same seed gives the same faults at the same targets
    in the same order.
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
        burst: Burst | None = None,
        hanging: int = 60,
    ) -> None:
        self._rig, self._history = rig, history
        self._random = Random(seed)  # noqa: S311 - repeatable, not secret
        self._every, self._hold = every, hold
        self._burst, self._hanging = burst, hanging
        chosen = [kind for name, kind in FAULTS.items() if kinds is None or name in kinds]
        possible = [kind for kind in chosen if kind.targets(rig)]
        self.left_out = [kind.name for kind in chosen if kind not in possible]
        """Kinds of faults that this machine, or this user, cannot inject."""
        self._possible = possible
        self._deck = self._shuffled(possible)
        self._under_way: dict[Future[None], Strike] = {}
        self._over = threading.Event()
        self._numbers = itertools.count(1)

    def run(self, until: float) -> None:
        """Strike until ``until`` (of `time.monotonic`); every fault is healed when this returns.

        What goes wrong with a fault is recorded with it, and raised.
        """
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="chaos-fault") as pool, self._ended_at(until):
            while not self._over.is_set():
                strike = self.draw()
                self._await_turn(strike)
                if not self._over.wait(strike.after):
                    # Its gap may have let others end, and never lets others begin.
                    self._under_way[pool.submit(self._strike, strike, next(self._numbers))] = strike
        self._await_turn(None)

    def run_liveness(self, until: float) -> None:
        """Take one worker and one scheduler away for good and flush Valkey every 5 s: nothing else heals.

        Beside that, what strangers and functions do strikes in turn (`faults.IN_LIVENESS`).
        """
        began = time.time()
        gone = [self._random.choice(self._rig.of_role(role)) for role in ("worker", "scheduler")]
        for process in gone:
            process.retire()
        flush = Strike(FAULTS["valkey-flush"], "valkey", 0)
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="chaos-fault") as pool, self._ended_at(until):
                beside = pool.submit(self._strike_in_turn)
                while not self._over.wait(_FLUSH_EVERY):
                    self._strike(flush, next(self._numbers))
                beside.result()
        finally:
            for process in gone:
                kind = f"{process.role}-gone"
                self._history.write(Fault(next(self._numbers), kind, process.name, began, time.time()))

    def _strike_in_turn(self) -> None:
        """Strike with what other programs do, one after the other. An error ends the run."""
        kinds = [kind for kind in self._possible if kind.name in IN_LIVENESS]
        try:
            for kind in itertools.cycle(self._random.sample(kinds, len(kinds))):
                if self._over.wait(self._random.uniform(*self._every)):
                    return
                target = self._random.choice(kind.targets(self._rig))
                self._strike(Strike(kind, target, self._random.getrandbits(32)), next(self._numbers))
        finally:
            self._over.set()

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

    def draw(self) -> Strike:
        """Return the next fault of the schedule."""
        kind = next(self._deck)
        return Strike(
            kind,
            self._random.choice(kind.targets(self._rig)),
            self._random.getrandbits(32),
            self._random.uniform(*self._every),
            self._random.random() < _JOINS,
        )

    def _await_turn(self, strike: Strike | None) -> None:
        """Wait until nothing is in the way of a fault; None: until all are healed. Raises what went wrong."""
        while True:
            for future in [future for future in self._under_way if future.done()]:
                del self._under_way[future]
                future.result()
            others = self._under_way.values()
            if not others or (strike is not None and self._may_join(strike)):
                return
            wait(self._under_way, timeout=_LOOK, return_when=FIRST_COMPLETED)

    def _may_join(self, strike: Strike) -> bool:
        others = self._under_way.values()
        return strike.joins and len(others) < _AT_ONCE and not any(map(strike.meets, others))

    def _strike(self, strike: Strike, number: int) -> None:
        stage = Stage(
            rig=self._rig,
            random=Random(strike.seed),  # noqa: S311 - repeatable, not secret
            history=self._history,
            number=number,
            hold=self._hold,
            burst=self._burst,
            hanging=self._hanging,
            over=self._over,
        )
        strike.kind.strike(stage, strike.target)

    def _shuffled(self, kinds: list[Kind]) -> Iterator[Kind]:
        place = self._random.randrange(_EARLY)
        first = self._random.sample(kinds, len(kinds))
        early = [kind for name in EARLY for kind in first if kind.name == name]
        others = [kind for kind in first if kind.name not in EARLY]
        yield from [*others[:place], *early, *others[place:]]
        while True:
            yield from self._random.sample(kinds, len(kinds))
