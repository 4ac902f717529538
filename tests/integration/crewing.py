"""What tests of a crew share: real processes that stand for workers, and a clock that the test moves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relay import children
from relay.domain.members import State
from relay.fleet.crew import Crew, Worker
from tests.waiting import wait_for

#: A worker that ends when it is asked to, one that does not, one that crashes.
GENTLE = "import signal; signal.sigwait([signal.SIGTERM])"
DEAF = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); print('deaf', flush=True); signal.pause()"
CRASHES = "raise SystemExit(3)"
DRAIN, READY = 20.0, 60.0


@dataclass
class Host:
    """A crew on a clock of its own. ``program``: what the next worker runs."""

    directory: Path
    program: str = GENTLE
    now: float = 1_000.0
    said: dict[int, State] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.crew = Crew(self.start, drain_s=DRAIN, ready_s=READY)

    def start(self) -> Any:
        command = [sys.executable, "-I", "-S", "-c", self.program]
        with (self.directory / "output").open("ab") as output:
            return children.start(command, environment={}, output=output)

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass, a tick each second, and look once more."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1)
            self.crew.tick(self.now, self.said)
        self.crew.tick(end, self.said)

    def works(self, *workers: Worker) -> None:
        """These say that they work."""
        self.said = {**(self.said or {}), **{it.pid: State.WORKING for it in workers}}

    def hire(self, count: int) -> list[Worker]:
        """Have so many workers that work."""
        self.crew.wanted = count
        self.tick()
        self.works(*self.crew.active)
        self.tick()
        return self.crew.active

    def until(self, what: str, condition: Any) -> None:
        """Tick, without moving the clock, until something has become of a process."""

        def ticked() -> object:
            return condition() or self.tick()

        wait_for(what, ticked)

    def gone(self, worker: Worker) -> None:
        self.until("it has ended", lambda: worker not in self.crew.workers)


def values(caplog: Any) -> list[tuple[Any, ...]]:
    """What the log lines of the crew say, without their words."""
    return [record.args for record in caplog.records if record.name == "relay.fleet"]


@contextmanager
def a_host(directory: Path) -> Iterator[Host]:
    """A host whose processes end with the test."""
    host = Host(directory)
    yield host
    host.crew.kill()
    for worker in host.crew.workers:
        worker.process.wait(60)
