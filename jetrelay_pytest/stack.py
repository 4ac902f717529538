"""Real servers for tests: from wheels, with tables and streams of a relay.toml, and workers that you may kill."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from relay import failpoints
from relay.devstack.fleet import DevFleetOptions, Fleet
from relay.failpoints import FailpointAction
from relay.settings import Settings

Found = TypeVar("Found")

#: How long a step may take on a busy machine, in seconds.
_PATIENCE_S = 60.0


class Stack:
    """PostgreSQL, NATS and Valkey with the databases and streams of a configuration, for a whole test session.

    Workers and scheduler run from `start` until `stop`, or the end of the session.
    """

    def __init__(self, fleet: Fleet, points: Path) -> None:
        self._fleet = fleet
        self._points = points

    @property
    def settings(self) -> Settings:
        """The configuration, with these servers."""
        return self._fleet.configuration.settings

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables with which your processes use these servers."""
        return self._fleet.configuration.variables

    def url(self, context: str, driver: str | None = None) -> str:
        """The database of a context; with a driver of SQLAlchemy, such as ``psycopg``, as its engines take it."""
        url = self.settings.contexts[context].database_url.get_secret_value()
        return url if driver is None else url.replace("postgresql://", f"postgresql+{driver}://", 1)

    def start(self) -> None:
        """Start scheduler, worker and sample handlers, and wait until they work. Running ones go on.

        A worker that was killed is started again. Raises ServerFailed with the last lines of a log.
        """
        self._fleet.start_processes()

    def stop(self) -> None:
        """End them gently; the servers go on."""
        self._fleet.stop_processes()

    def log(self, name: str) -> str:
        """The log of a process: ``worker``, ``scheduler`` or ``handler``."""
        return (self._fleet.stack.directory / "logs" / f"{name}.log").read_text()

    @staticmethod
    def until(what: str, condition: Callable[[], Found], seconds: float = _PATIENCE_S) -> Found:
        """Wait until a condition returns a true value, and return that. Raises AssertionError with ``what``."""
        end = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds:g} s: {what}")
            time.sleep(0.05)
        return found


class Failpoints:
    """Kills a worker at a point of its work. `relay.failpoints.POINTS` names the points.

    The first worker that passes an armed point acts, once.
    """

    def __init__(self, directory: Path, fleet: Fleet) -> None:
        self._directory = directory
        self._fleet = fleet
        self._armed: dict[str, FailpointAction] = {}

    def kill(self, point: str) -> None:
        """Kill the next process that passes the point. Raises ValueError for an unknown point."""
        self._arm(point, FailpointAction.KILL)

    def lose_reply(self, point: str) -> None:
        """Let the next process that passes the point see an outage, although its work succeeded."""
        self._arm(point, FailpointAction.LOST_REPLY)

    def wait(self, seconds: float = _PATIENCE_S) -> None:
        """Wait until every armed point was passed, and the killed processes are gone. Raises AssertionError."""
        for point in self._armed:
            Stack.until(f"{point} is passed", partial(failpoints.reached, self._directory, point), seconds)
        if FailpointAction.KILL in self._armed.values():
            # Its command ends with it, a moment later.
            Stack.until("the killed process has ended", self._fleet.ended, seconds)

    def disarm(self) -> None:
        """Forget all points."""
        for file in self._directory.iterdir():
            file.unlink()
        self._armed.clear()

    def _arm(self, point: str, action: FailpointAction) -> None:
        failpoints.arm(self._directory, point, action)
        self._armed[point] = action


@contextmanager
def running(config: Path, modules: Path) -> Iterator[Stack]:
    """Run a stack on a configuration. ``modules``: where workers find the modules that it names."""
    # Not below pytest's own directory: as root, PostgreSQL's account may not enter that one.
    directory = Path(tempfile.mkdtemp(prefix="jetrelay-"))
    directory.chmod(0o711)
    points = directory / "failpoints"
    points.mkdir()
    environment = {"RELAY_FAILPOINTS": str(points)}
    options = DevFleetOptions(
        directory=directory / "stack", config=config, inherit=False, modules=modules, environment=environment
    )
    fleet = Fleet(options)
    try:
        fleet.prepare()
        yield Stack(fleet, points)
    finally:
        fleet.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def armed(stack: Stack) -> Iterator[Failpoints]:
    """The failpoints of a stack, for one test."""
    points = Failpoints(stack._points, stack._fleet)  # noqa: SLF001 - of the same module
    points.disarm()
    try:
        yield points
    finally:
        points.disarm()
