"""Supervises the workers of one host: reads the load, decides how many there should be, and says so in Redis."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from relay import children
from relay.adapters.dramatiq.runtime import SIGTERM_DEDUP_WINDOW_S
from relay.adapters.members import Heart, this_process, up_seconds
from relay.bootstrap import Application
from relay.commands.lag import read_all
from relay.concurrency import end
from relay.domain import lag, members
from relay.domain.errors import InvalidRequest, QueueUnreachable, RelayError
from relay.domain.lag import Load
from relay.domain.members import Member, Seen, State
from relay.domain.scaling import History, Sample, ScalingRules, decide
from relay.fleet.crew import Crew, Said
from relay.settings import Settings, environment_for_child

_log = logging.getLogger("relay.fleet")

#: Dramatiq ends a worker this much before we kill it, in seconds, if there is so much time.
_MARGIN_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """``threads`` of each worker; how long one may take to end; how often the load is read. Times in seconds.

    Raises InvalidRequest; ``field`` is the option of the command line.
    """

    threads: int = 8
    drain_s: float = 30.0
    every_s: float = 5.0

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise InvalidRequest("a worker has at least one thread", field="--threads")
        if not 1 <= self.drain_s <= 86_400:
            raise InvalidRequest("must be 1 to 86400 seconds", field="--drain")
        if not 0.2 <= self.every_s <= 300:
            raise InvalidRequest("must be 0.2 to 300 seconds", field="--every")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorTimes:
    """How often to look, and how long to wait, in seconds.

    ``tick_every``: how often to check the processes. ``look_every``: how often to read their heartbeats.
    ``ready``: how long a new worker may take for its first heartbeat. On an overloaded host that takes long; to
    kill it and begin again would make the load grow. ``same_signal``: a second SIGTERM within this time counts as
    the same one.
    """

    tick_every: float = 0.2
    look_every: float = 1.0
    ready: float = 120.0
    same_signal: float = SIGTERM_DEDUP_WINDOW_S


class Supervisor:
    """Runs until SIGTERM or SIGINT, then lets the workers finish. SIGHUP replaces them, one after another.

    A second SIGINT, or a SIGTERM later than five seconds after the first, kills them.
    """

    def __init__(
        self,
        settings: Settings,
        rules: ScalingRules,
        options: FleetOptions,
        times: SupervisorTimes = SupervisorTimes(),
    ) -> None:
        self._settings, self._rules, self._options, self._times = settings, rules, options, times
        self._this = this_process("fleet", f"{uuid4().hex[:12]}-{os.getpid()}")
        self._crew = Crew(self._start_worker, drain_s=options.drain_s, ready_s=times.ready)
        self._crew.wanted = rules.least
        self._application = Application(settings, role="fleet")
        self._heart = Heart(self._application.members, self._describe)
        self._seen: Sequence[Seen] | None = None
        self._history, self._why = History(), ""
        self._ending = asyncio.Event()
        self._ended_at = 0.0
        self._terminal = os.isatty(0)

    async def run(self) -> int:
        """Supervise until asked to end; returns 1 if workers had to be killed, else 0."""
        self._heed_signals()
        await self._application.start()
        await self._heart.start()
        watching = [asyncio.create_task(it) for it in (self._look(), self._scale())]
        try:
            while not self._ending.is_set() or self._crew.workers:
                await self._tick()
        finally:
            self._crew.kill()
            for task in watching:
                await end(task)
            await self._heart.stop()
            await self._application.stop()
        _log.info("all workers have ended")
        return 1 if self._crew.killed else 0

    async def _tick(self) -> None:
        pause = self._times.tick_every
        try:
            self._crew.tick(time.monotonic(), self._said())
        except OSError as error:
            _log.error("cannot start a worker: %s", error.strerror)
            pause = self._times.look_every
        await asyncio.sleep(pause)

    # --- signals ---

    def _heed_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number)
        loop.add_signal_handler(signal.SIGHUP, self._restart)

    def _end(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if not self._ending.is_set():
            self._ending.set()
            self._ended_at = now
            count = len(self._crew.workers)
            _log.info("%d workers finish what they have begun, within %g s", count, self._options.drain_s)
            self._crew.end(now)
            self._heart.tell()
        elif number == signal.SIGINT or now - self._ended_at > self._times.same_signal:
            _log.warning("killing %d workers", len(self._crew.workers))
            self._crew.killed += len(self._crew.workers)
            self._crew.kill()

    def _restart(self) -> None:
        if self._terminal and not os.isatty(0):
            # This is no request for new workers: the terminal that we ran in was closed.
            self._end(signal.SIGHUP)
        elif not self._ending.is_set():
            self._crew.restart()

    # --- workers ---

    def _start_worker(self) -> subprocess.Popen[bytes]:
        patience_ms = int(max(0.5, self._options.drain_s - _MARGIN_S) * 1000)
        size = ["--processes", "1", "--threads", str(self._options.threads)]
        command = [sys.executable, "-m", "dramatiq", "relay.actors", *size]
        command += ["--worker-shutdown-timeout", str(patience_ms)]
        process = children.start(command, environment=environment_for_child(RELAY_FLEET=self._this.id))
        _log.info("worker %d started", process.pid)
        return process

    def _ours(self) -> Mapping[int, Seen]:
        """The heartbeats of the running workers, by the process of their command. A killed worker has none."""
        ours = [it for it in self._seen or () if it.member.fleet == self._this.id and it.state is not State.LOST]
        running = {it.pid for it in self._crew.workers}
        return {it.member.command: it for it in ours if it.member.command in running}

    def _said(self) -> Said:
        return None if self._seen is None else {pid: seen.state for pid, seen in self._ours().items()}

    # --- load ---

    async def _look(self) -> None:
        while not self._ending.is_set():
            try:
                self._seen = await self._application.members.all()
            except QueueUnreachable:
                self._seen = None
            except Exception:
                # Survive any error: without heartbeats no worker is judged.
                _log.exception("the heartbeats of workers cannot be read")
                self._seen = None
            await asyncio.sleep(self._times.look_every)

    async def _scale(self) -> None:
        while not self._ending.is_set():
            await asyncio.sleep(self._options.every_s)
            try:
                sample = await self._sample()
            except Exception:
                # Survive any error: the workers go on, as many as there are.
                _log.exception("the load cannot be read")
                continue
            if not self._ending.is_set():
                self._follow(sample)

    def _follow(self, sample: Sample) -> None:
        size = self._crew.wanted
        decision = decide(self._rules, size, sample, self._history)
        if decision.size != size:
            _log.info("%d workers instead of %d: %s", decision.size, size, decision.why)
        elif isinstance(sample.load, RelayError) and self._why != decision.why:
            _log.warning("%d workers stay: %s", size, decision.why)
        self._history, self._why, self._crew.wanted = decision.history, decision.why, decision.size

    async def _sample(self) -> Sample:
        lags = await read_all(map(self._application.lag, self._settings.contexts))
        load: Load | RelayError = lag.total(lags)
        if self._seen is None and isinstance(load, Load):
            load = QueueUnreachable("Redis does not say how busy the workers are")
        usages = [it.member.usage for it in self._ours().values()]
        busy = members.busy_part([it for it in usages if it is not None])
        return Sample(at=time.monotonic(), load=load, busy=busy)

    def _describe(self) -> Member:
        crew = members.CrewReport(
            least=self._rules.least,
            most=self._rules.most,
            wanted=self._crew.wanted,
            running=len(self._crew.workers),
            why=self._why,
            crashes=self._crew.crashes,
        )
        state = State.ENDING if self._ending.is_set() else State.WORKING
        return replace(self._this, state=state, up_seconds=up_seconds(), crew=crew)


def supervise(settings: Settings, rules: ScalingRules, options: FleetOptions) -> int:
    """Run a supervisor in this process; returns its exit status."""
    with suppress(KeyboardInterrupt):
        return asyncio.run(Supervisor(settings, rules, options).run())
    return 1
