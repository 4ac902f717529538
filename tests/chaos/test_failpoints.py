"""Killed, paused or cut off at every step of the delivery paths: each event once, in order, nothing left over.

All cases together take minutes of waiting for leases to run out and hardly any work, so five fleets play them at
once, each one case after the other. A case has its fleet to itself, and a fleet that a case has failed on is
replaced. Run without ``-n``: every process of it would play all cases.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from chaos.history import Source
from relay.failpoints import EVENT_POINTS, FailpointAction
from tests.chaos.crashing import HANDLER_TIMEOUT, PYTHON_HANDLER, CrashFleet, EffectService, play
from tests.chaos.story import Story
from tests.sampling import marked

#: Where a Python handler makes a difference: it settles the row itself, in its own transaction.
HANDLERS = {
    "after_message_claim": ("http", "python", "chunk"),
    "after_handler_before_mark": ("http", "python"),
    "after_mark_before_handler_commit": ("python", "async", "chunk"),
    "after_commit_before_ack": ("http", "chunk"),
}
#: How many fleets of a kind there are. Coroutines are the Python handlers of events in version 2; the functions
#: of a chunk share a transaction.
FLEETS = {"http": 3, "python": 1, "chunk": 1}
#: One case at its slowest, and those that wait for the same fleet before it.
SECONDS = 600


class Case(NamedTuple):
    """One crash; ``handler``: http, python (a function), async (a coroutine) or chunk (functions together)."""

    point: str
    action: FailpointAction
    handler: str

    def __str__(self) -> str:
        return f"{self.point}-{self.action.value}" + ("" if self.handler == "http" else f"-{self.handler}")

    @property
    def fleet(self) -> str:
        """The kind of fleet it is played on."""
        return "python" if self.handler == "async" else self.handler


CASES = [
    Case(point, action, handler)
    for point in EVENT_POINTS
    for action in FailpointAction
    for handler in HANDLERS.get(point, ("http",))
]


class Matrix:
    """Plays cases on several fleets at once."""

    def __init__(self, root: Path, cases: Sequence[Case]) -> None:
        self.outcomes: dict[Case, Future[None]] = {case: Future() for case in cases}
        self._root = root
        self._numbers = iter(range(10_000))
        self._stopping = False
        self._threads = []
        for kind, fleets in FLEETS.items():
            waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
            mine = [case for case in cases if case.fleet == kind]
            for case in mine:
                waiting.put(case)
            for _ in range(min(fleets, len(mine))):
                self._threads.append(threading.Thread(target=self._work, args=(kind, waiting)))
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Play no further case."""
        self._stopping = True
        for thread in self._threads:
            thread.join()

    def _work(self, kind: str, waiting: queue.SimpleQueue[Case]) -> None:
        while not waiting.empty() and not self._stopping:
            with ExitStack() as stack:
                self._play(kind, waiting, stack)

    def _play(self, kind: str, waiting: queue.SimpleQueue[Case], stack: ExitStack) -> None:
        """Play cases on a new fleet until there are none, or one fails."""
        fleet: CrashFleet | None = None
        while not self._stopping:
            try:
                case = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                fleet = fleet or self._start(kind, stack)
                play(fleet, case.point, case.action, version=2 if case.handler == "async" else 1)
            except BaseException as error:
                if fleet is not None:
                    error.add_note(f"the end of the workers' log:\n{fleet.log('worker')[-3_000:]}")
                self.outcomes[case].set_exception(error)
                return
            self.outcomes[case].set_result(None)

    def _start(self, kind: str, stack: ExitStack) -> CrashFleet:
        directory = self._root / f"failpoints-{next(self._numbers)}"
        points = directory / "points"
        points.mkdir(parents=True)
        address, service = PYTHON_HANDLER, None
        if kind == "http":
            service = stack.enter_context(EffectService())
            address = service.url
        fleet = stack.enter_context(
            CrashFleet(
                directory,
                handler=address,
                handler_timeout=HANDLER_TIMEOUT,
                more="chunk = 10" if kind == "chunk" else "",
                failpoints=points,
                story=Story(Source.HTTP if kind == "http" else Source.PYTHON),
            )
        )
        if service is not None:
            service.use(fleet.urls["sea"])
        fleet.begin()
        return fleet


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, server_root: Path) -> Iterator[Matrix]:
    chosen = [item.callspec.params["case"] for item in request.session.items if item.path == request.path]
    matrix = Matrix(server_root, chosen)
    yield matrix
    matrix.close()


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("case", marked(CASES, whole=True), ids=str)
def test_whatever_happens_at_a_point_changes_nothing(matrix: Matrix, case: Case) -> None:
    matrix.outcomes[case].result(SECONDS)
