"""The producers of a run: seeded threads that commit and roll back events at a given rate, whatever happens.

Many small transactions and some large ones, over a few busy keys and many quiet ones.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Self
from uuid import UUID

from chaos.history import History, Operation, Outcome, Plan, Produced, Source
from chaos.plan import plan_of
from chaos.producer import Producer

#: How many of a hundred transactions are of which kind.
KINDS: Final = {"one": 84, "batch": 3, "rollback": 12, "bad": 1}
#: How many of a hundred events are for which subscription. Ordered ones wait for each other, so there are fewer.
SOURCES: Final = {Source.HTTP: 40, Source.PYTHON: 39, Source.ORDERED: 20, Source.SLOW: 1}
#: The subscriptions that bursts are for; any if none is named.
_SOURCES_OF: Final = {
    "slow": (Source.SLOW,),
    "failing": (Source.HTTP,),
    "flaky": (Source.PYTHON, Source.ORDERED),
}
HOT_KEYS: Final = 10
COLD_KEYS: Final = 5_000
_HOT_SHARE: Final = 0.25
_SESSION_SHARE: Final = 0.25
_MOST_AT_ONCE: Final = 3
_LARGE_KEYS: Final = 5
_WATCH_SECONDS: Final = 0.5
#: After a transaction that failed: an unreachable database is not asked again at once, in seconds.
_PAUSE: Final = 0.2


class Workload:
    """Producers until `stop`. Use as a context manager, or `start` it.

    ``rate``: events per second of all threads together, at most. ``batch``: events of a large transaction.
    """

    def __init__(
        self, url: str, history: History, seed: int, *, threads: int = 4, rate: float = 200.0, batch: int = 100
    ) -> None:
        self._url, self._history, self._seed, self._batch = url, history, seed, batch
        self._pace = _Pace(rate)
        self._stopping = threading.Event()
        self._numbers = itertools.count(1)
        self._bad = itertools.count()
        self._lock = threading.Lock()
        self._committed = 0
        self._errors: list[BaseException] = []
        self._producers = [Producer(url) for _ in range(threads)]
        targets = [lambda n=n: self._produce(n) for n in range(threads)]
        self._threads = [
            threading.Thread(target=self._guarded, args=[target], name="chaos-producer", daemon=True)
            for target in [*targets, self._watch]
        ]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def committed(self) -> int:
        """How many events are known to be committed, bad ones included."""
        with self._lock:
            return self._committed

    def start(self) -> None:
        """Begin to produce. Returns at once."""
        for thread in self._threads:
            thread.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Begin no more transactions meanwhile."""
        with self._pace.held:
            yield

    def stop(self) -> None:
        """End after the transactions that are open. Raises what a producer did not expect."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def burst(self, what: str, count: int) -> None:
        """Commit events of a special kind in a transaction of their own. Beside `start` or without.

        ``bad``: rows that can never be published. ``large``: payloads of 100 to 900 KB. ``future``: rows that are
        minutes ahead of the database's clock. ``slow``: for the slow subscription. ``failing``: whose handler
        always fails, for a subscription whose window has fewer places. ``flaky``: whose Python handlers fail some
        times.
        """
        producer = Producer(self._url)
        number = next(self._numbers)
        chance = random.Random(f"{self._seed}/{what}/{number}")  # noqa: S311 - repeatable
        try:
            if what == "bad":
                self._write_bad(producer, chance, count)
                return
            sources = _SOURCES_OF.get(what, (None,))
            plan = {"failing": Plan.NEVER, "flaky": Plan.FLAKY}.get(what)
            keys = [_burst_key(what, number, place) for place in range(count)]
            events = [
                self._event(chance, key, source=source, plan=plan)
                for key, source in zip(keys, itertools.cycle(sources), strict=False)
            ]
            match what:
                case "large":
                    outcome = producer.large(number, events, chance)
                case "future":
                    outcome = producer.future(number, events)
                case _:
                    outcome = producer.plain(number, events, together=True)
            self._note(number, what, outcome, events)
        finally:
            producer.close()

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            self._errors.append(error)

    def _watch(self) -> None:
        while not self._stopping.is_set() or any(thread.is_alive() for thread in self._threads[:-1]):
            for producer in self._producers:
                producer.watch()
            time.sleep(_WATCH_SECONDS)

    def _produce(self, index: int) -> None:
        chance = random.Random(f"{self._seed}/{index}")  # noqa: S311 - repeatable
        producer = self._producers[index]
        try:
            while not self._stopping.is_set():
                [kind] = chance.choices([*KINDS], [*KINDS.values()])
                if self._operate(producer, chance, kind) is not Outcome.OK and kind != "rollback":
                    self._stopping.wait(_PAUSE)
        finally:
            producer.close()

    def _operate(self, producer: Producer, chance: random.Random, kind: str) -> Outcome | None:
        if kind == "bad":
            return self._write_bad(producer, chance, 1)
        events = self._events(chance, self._batch if kind == "batch" else chance.randint(1, _MOST_AT_ONCE))
        in_session = kind != "rollback" and chance.random() < _SESSION_SHARE
        # One by one only where that cannot deadlock: one call takes its locks in order, several calls do not.
        together = len({event.key for event in events}) > 1 or chance.random() < 0.5
        if not self._pace.wait(len(events), self._stopping):
            return None
        number = next(self._numbers)
        if in_session:
            outcome = producer.session(number, events)
        else:
            outcome = producer.plain(number, events, together=together, roll_back=kind == "rollback")
        self._note(number, kind, outcome, events)
        return outcome

    def _write_bad(self, producer: Producer, chance: random.Random, count: int) -> Outcome:
        number = next(self._numbers)
        events = [self._event(chance, f"bad-{number}-{place}", bad=True) for place in range(count)]
        outcome = producer.bad(number, events, next(self._bad))
        self._note(number, "bad", outcome, events)
        return outcome

    def _events(self, chance: random.Random, count: int) -> list[Produced]:
        if count <= _MOST_AT_ONCE and chance.random() < 0.5:
            keys = [_key(chance)] * count
        else:
            keys = [_key(chance) for _ in range(count)]
        return [self._event(chance, key) for key in keys]

    def _event(
        self,
        chance: random.Random,
        key: str,
        *,
        bad: bool = False,
        source: Source | None = None,
        plan: Plan | None = None,
    ) -> Produced:
        # The seed repeats this id, and so the plan. An id of Outbox.add would contain the time.
        id = UUID(int=chance.getrandbits(128), version=4)
        while plan is not None and plan_of(id, self._seed) is not plan:
            id = UUID(int=chance.getrandbits(128), version=4)
        [drawn] = chance.choices([*SOURCES], [*SOURCES.values()])
        return Produced(str(id), source or drawn, key, plan_of(id, self._seed), bad)

    def _note(self, number: int, kind: str, outcome: Outcome, events: Sequence[Produced]) -> None:
        self._history.write(Operation(number, kind, outcome, events, time.time()))
        if outcome is Outcome.OK:
            with self._lock:
                self._committed += len(events)


def _key(chance: random.Random) -> str:
    if chance.random() < _HOT_SHARE:
        return f"hot-{chance.randrange(HOT_KEYS)}"
    return f"cold-{chance.randrange(COLD_KEYS)}"


def _burst_key(what: str, number: int, place: int) -> str:
    """Large events share a few keys; the others have one each, so that none waits for another."""
    return f"{what}-{number}-{place % _LARGE_KEYS if what == 'large' else place}"


class _Pace:
    """Spreads events over time. It does not catch up after an outage."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._next = time.monotonic()
        self.held = threading.Lock()

    def wait(self, count: int, stopping: threading.Event) -> bool:
        """Wait for the turn of ``count`` events; False when the end came first."""
        with self.held:
            turn = max(self._next, time.monotonic())
            self._next = turn + count / self._rate
        return not stopping.wait(turn - time.monotonic())
