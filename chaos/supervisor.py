"""Keeps processes running, as a process manager does: restarts those that ended, unless retired."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from relay.devstack import processes
from relay.devstack.errors import DevStackError

_POLL_SECONDS: Final = 0.1
#: How long after it noticed the end of a process it starts the process again.
_RESTART_SECONDS: Final = 0.5


class Orphans(list[psutil.Process]):
    """The child processes of a process that was killed alone."""

    def kill(self) -> int:
        """Kill those that are still running; returns how many."""
        left = [process for process in self if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
        processes.kill_all(left)
        return len(left)


class Supervised:
    """A process and its successors under one name. Safe to use from any thread.

    ``wanted``: whether it is started again when it ends. ``starts`` counts how often it was started,
    ``ended_alone`` how often it was started again although nobody had killed it or asked it to end.
    """

    def __init__(
        self, name: str, role: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name, self.role, self.log = name, role, log
        self.wanted = True
        self.starts = self.ended_alone = 0
        self._told_to_end = False
        self._command, self._environment = command, environment
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()

    @property
    def running(self) -> bool:
        """Whether it runs; a frozen process counts as running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The number of the current process. Raises DevStackError while none runs."""
        process = self._process
        if process is None or process.poll() is not None:
            raise DevStackError(f"{self.name} does not run")
        return process.pid

    def start(self) -> None:
        """Start it unless it runs or is retired."""
        with self._lock:
            if self.wanted and not self.running:
                self.ended_alone += self.starts > 0 and not self._told_to_end
                self._told_to_end = False
                self._process = processes.spawn(
                    self._command, log=self.log, directory=Path.cwd(), environment=self._environment
                )
                self.starts += 1

    def kill(self) -> None:
        """Kill it at once with everything it started (SIGKILL); does nothing if it does not run."""
        with self._lock:
            self._told_to_end = True
            if self._process is not None and self.running:
                processes.kill(self._process.pid)
                self._process.wait()

    def kill_main(self) -> Orphans:
        """Kill the process but not its children, which go on; returns the children."""
        self.await_running()
        with self._lock:
            orphans = Orphans(psutil.Process(self.pid).children(recursive=True))
            self._told_to_end = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            return orphans

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        with self._lock:
            self._told_to_end = True
            if self._process is not None and self.running:
                self._process.send_signal(signal.SIGTERM)

    def freeze(self) -> None:
        """Freeze it and everything it started (SIGSTOP)."""
        self.await_running()
        with self._lock:
            processes.freeze(self.pid)

    def thaw(self) -> None:
        """Let it go on (SIGCONT); harmless if it is not frozen or does not run."""
        process = self._process
        if process is not None and process.poll() is None:
            processes.thaw(process.pid)

    def retire(self) -> None:
        """Kill it for good."""
        self.wanted = False
        self.kill()

    def await_running(self, seconds: float = 10.0) -> None:
        """Wait until it runs, because another fault may have ended it. Raises DevStackError after ``seconds``."""
        self.await_successor(0, seconds)

    def await_successor(self, starts: int, seconds: float) -> None:
        """Wait until it was started more than ``starts`` times; raises DevStackError after ``seconds``."""
        deadline = time.monotonic() + seconds
        while self.starts <= starts or not self.running:
            if time.monotonic() > deadline:
                raise DevStackError(f"{self.name} was not started again within {seconds:.0f} s")
            time.sleep(_POLL_SECONDS)


class Supervisor:
    """A thread that restarts processes that ended."""

    def __init__(self) -> None:
        self._watched: list[Supervised] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-supervisor", daemon=True)

    def start(self, watched: Iterable[Supervised]) -> None:
        """Begin to watch processes that have been started."""
        self._watched.extend(watched)
        self._thread.start()

    def stop(self) -> None:
        """Watch no more, and kill everything; harmless when never started."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        for process in self._watched:
            process.retire()

    def _run(self) -> None:
        ended: dict[str, float] = {}
        while not self._end.wait(_POLL_SECONDS):
            for process in self._watched:
                if process.running:
                    ended.pop(process.name, None)
                elif time.monotonic() - ended.setdefault(process.name, time.monotonic()) >= _RESTART_SECONDS:
                    process.start()
