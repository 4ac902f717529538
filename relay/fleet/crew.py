"""The worker processes of this host: starts, restarts, replaces and ends them.

It keeps as many workers as are wanted. It knows processes and their heartbeats, but not the load.
"""

from __future__ import annotations

import logging
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from relay.children import ended_by, kill_group
from relay.domain.members import State

_log = logging.getLogger("relay.fleet")

#: The heartbeats of the workers, by the process of their command; None while they cannot be read.
Said = Mapping[int, State] | None

#: The longest wait before a worker replaces one that crashed, in seconds. The wait doubles up to this.
_MAX_BACKOFF_S: Final = 30.0
#: How often the wait doubles. Then it has reached that.
_DOUBLINGS: Final = 5
#: A worker that had a heartbeat and ran for this long, in seconds, was well: its end begins no crash loop.
_WELL_AFTER_S: Final = 60.0
#: How much silence one tick counts at most, in seconds. When the whole host stood still, no worker could speak.
_LONGEST_TICK_S: Final = 1.0
#: So many crashes in a row are a loop.
_LOOP: Final = 5
#: What Dramatiq says by its exit codes.
_CODES: Final = {
    1: "a worker process was killed",
    2: "a module could not be imported, or the configuration cannot be used: see its log above",
    3: "the broker could not be reached",
}


@dataclass(eq=False)
class Worker:
    """One worker: a `dramatiq` command with one process. Times are on the clock of the crew, in seconds.

    ``unheard_s``: for how long it could have sent a heartbeat lately, and did not. ``ends_by``: when it is killed,
    once it was asked to end.
    """

    process: subprocess.Popen[bytes]
    started: float
    unheard_s: float = 0.0
    heard: bool = False
    ends_by: float | None = None

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    def kill(self) -> None:
        """Kill it with all that it started."""
        kill_group(self.pid)


class Crew:
    """Keeps ``wanted`` workers, made by ``start``. Call `tick` a few times a second.

    A worker has ``drain_s`` to finish what it has begun; then it is killed. It is also killed if it sends no
    heartbeat for ``ready_s``: Dramatiq's master may wait for ever for a process that died. Used from one thread.
    """

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]], *, drain_s: float, ready_s: float) -> None:
        self._start, self._drain_s, self._ready_s = start, drain_s, ready_s
        self.wanted = 0
        self.workers: list[Worker] = []
        #: How many ended by themselves, and how many had to be killed when they were to end.
        self.crashes = self.killed = 0
        self._in_a_row = 0
        self._not_before = 0.0
        self._ticked: float | None = None
        # A rolling restart: the workers to be replaced, the successor of the first of them, and the worker that
        # ends now.
        self._old: list[Worker] = []
        self._new: Worker | None = None
        self._leaving: Worker | None = None

    @property
    def active(self) -> list[Worker]:
        """The workers that were not asked to end."""
        return [it for it in self.workers if it.ends_by is None]

    def tick(self, now: float, said: Said) -> None:
        """Check every worker. Raises OSError if no process can be started at all."""
        for worker in list(self.workers):
            self._look_after(worker, now, said)
        self._ticked = now
        self._roll(now, said)
        self._size(now)

    def restart(self) -> None:
        """Replace all workers that run now, one after another; each goes when its successor works."""
        self._old = self.active
        _log.info("rolling restart of %d workers", len(self._old))

    def end(self, now: float) -> None:
        """Ask all to end. `tick` goes on until there are no ``workers``."""
        self.wanted = 0
        self._old, self._new = [], None
        for worker in self.active:
            self._ask_to_end(worker, now)

    def kill(self) -> None:
        """Kill all at once."""
        for worker in self.workers:
            worker.kill()

    # --- one worker ---

    def _look_after(self, worker: Worker, now: float, said: Said) -> None:
        if (status := worker.process.poll()) is not None:
            worker.kill()  # processes that a killed command has left
            self.workers.remove(worker)
            if worker.ends_by is None:
                self._note_crash(worker, ended_by(status), _CODES.get(status, ""), now)
            return
        if said is not None:
            worker.heard = worker.heard or worker.pid in said
            passed = 0.0 if self._ticked is None else min(_LONGEST_TICK_S, now - self._ticked)
            worker.unheard_s = 0.0 if worker.pid in said else worker.unheard_s + passed
        if worker.ends_by is not None and now >= worker.ends_by:
            _log.warning("worker %d has not ended within %g s: it is killed", worker.pid, self._drain_s)
            self.killed += 1
            worker.ends_by = now + self._drain_s
            worker.kill()
        elif worker.ends_by is None and worker.unheard_s >= self._ready_s:
            # The next tick finds it ended, and counts a crash.
            _log.error("worker %d sent no heartbeat for %g s: it is killed", worker.pid, self._ready_s)
            worker.unheard_s = 0
            worker.kill()

    def _note_crash(self, worker: Worker, how: str, why: str, now: float) -> None:
        self.crashes += 1
        well = worker.heard and now - worker.started >= _WELL_AFTER_S
        self._in_a_row = 1 if well else self._in_a_row + 1
        pause = min(_MAX_BACKOFF_S, 2.0 ** min(self._in_a_row - 1, _DOUBLINGS))
        self._not_before = max(self._not_before, now + pause)
        text = "worker %d ended by itself with %s%s; the next start is in %g s"
        _log.error(text, worker.pid, how, f" ({why})" if why else "", pause)
        if self._in_a_row >= _LOOP:
            loop = "crash loop: %d workers one after the other did not work for %g s; the last ended with %s"
            _log.critical(loop, self._in_a_row, _WELL_AFTER_S, how)

    def _ask_to_end(self, worker: Worker, now: float) -> None:
        worker.ends_by = now + self._drain_s
        with suppress(ProcessLookupError):
            worker.process.send_signal(signal.SIGTERM)

    # --- how many ---

    def _size(self, now: float) -> None:
        active = self.active
        wanted = self.wanted + (self._new in active)
        for _ in range(len(active), wanted):
            if now < self._not_before:
                return
            self._hire(now)
        # The youngest first, unless others are about to be replaced anyway.
        surplus = len(active) - wanted
        if surplus > 0:
            leaving = [it for it in active if it is not self._new]
            leaving.sort(key=lambda it: (it not in self._old, -it.started))
            for worker in leaving[:surplus]:
                self._ask_to_end(worker, now)

    def _hire(self, now: float) -> Worker:
        worker = Worker(self._start(), now)
        self.workers.append(worker)
        return worker

    def _roll(self, now: float, said: Said) -> None:
        active = self.active
        self._old = [it for it in self._old if it in active]
        if self._new is not None:
            self._await_new(self._new, now, said)
        elif self._old and self._leaving not in self.workers and now >= self._not_before:
            self._new = self._hire(now)

    def _await_new(self, new: Worker, now: float, said: Said) -> None:
        if new not in self.active:
            self._give_up(f"worker {new.pid}, the first new one, has ended")
        elif said is not None and said.get(new.pid) is State.WORKING:
            self._new = None
            # A second restart may be about to replace the new one, too.
            if leaving := next((it for it in self._old if it is not new), None):
                self._old.remove(leaving)
                self._leaving = leaving
                _log.info("worker %d takes over from %d", new.pid, leaving.pid)
                self._ask_to_end(leaving, now)
            if not self._old:
                _log.info("rolling restart done")
        elif now - new.started >= self._ready_s:
            self._ask_to_end(new, now)
            self._give_up(f"worker {new.pid} does not say within {self._ready_s:g} s that it works")

    def _give_up(self, why: str) -> None:
        _log.error("rolling restart stopped, %d workers go on as before: %s", len(self._old), why)
        self._old, self._new = [], None
