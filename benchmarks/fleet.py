"""A scheduler and workers as in production, on a configuration of the benchmark's own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from relay.devstack import DevStack, ServerFailed, configuration, processes, provision, spawn
from relay.devstack.http_checks import connected_clients, pulled_consumers
from relay.devstack.logs import last_lines
from relay.settings import Settings

ROOT: Final = Path(__file__).parents[1]
THREADS: Final = 8
_READY_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Layout:
    """What a fleet serves: its relay.toml, further variables, and its queues if not all."""

    name: str
    config: str
    variables: Mapping[str, str] = field(default_factory=dict)
    queues: tuple[str, ...] = ()


class Fleet:
    """``python -m scheduler`` and any number of ``dramatiq relay.actors`` of one process and 8 threads each."""

    def __init__(self, stack: DevStack, layout: Layout, directory: Path) -> None:
        self.layout = layout
        self.directory = directory / layout.name
        self.directory.mkdir(parents=True, exist_ok=True)
        self._stack = stack
        self._workers: list[subprocess.Popen[bytes]] = []
        self._scheduler: subprocess.Popen[bytes] | None = None
        file = self.directory / "relay.toml"
        file.write_text(layout.config)
        base = {**configuration.base_environment(inherit=False), **layout.variables, "PYTHONPATH": str(ROOT)}
        self._configuration = configuration.configure(stack, file, base, {})
        provision.prepare(stack, self.settings)

    @property
    def settings(self) -> Settings:
        return self._configuration.settings

    def url(self, context: str) -> str:
        """Return the address of a context's database."""
        return self.settings.contexts[context].database_url.get_secret_value()

    @property
    def schedulers(self) -> list[psutil.Process]:
        """The scheduler's process, if it runs."""
        return [psutil.Process(self._scheduler.pid)] if self._scheduler else []

    @property
    def workers(self) -> list[psutil.Process]:
        """The processes that run actors; dramatiq's own parent processes are not among them."""
        children = (psutil.Process(worker.pid).children() for worker in self._workers)
        # Beside its worker process dramatiq may keep a resource tracker.
        return [max(found, key=lambda process: process.memory_info().rss) for found in children if found]

    @property
    def processes(self) -> list[psutil.Process]:
        """Every process of the fleet, dramatiq's parents included."""
        parents = [*self.schedulers, *(psutil.Process(worker.pid) for worker in self._workers)]
        return [each for parent in parents for each in (parent, *parent.children(recursive=True))]

    def run(self, workers: int) -> None:
        """Have so many workers and a scheduler, connected and at work; with 0 workers nothing runs."""
        if workers and self._scheduler is None:
            self._scheduler = self.start("scheduler", "-m", "scheduler")
        queues = ["-Q", *self.layout.queues] if self.layout.queues else []
        size = ["--processes", "1", "--threads", str(THREADS)]
        while len(self._workers) < workers:
            self._workers.append(self.start("worker", "-m", "dramatiq", "relay.actors", *size, *queues))
        surplus = self._workers[workers:]
        del self._workers[workers:]
        if not workers and self._scheduler:
            surplus.append(self._scheduler)
            self._scheduler = None
        _end(surplus)
        self._await_ready()

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start Python with the configuration of the fleet. Who calls this ends the process."""
        environment = {
            "RELAY_LOG_FORMAT": "console",
            "RELAY_LOG_LEVEL": "WARNING",
            **self._configuration.environment,
        }
        log = self.directory / f"{name}.log"
        return spawn([sys.executable, *arguments], log=log, directory=ROOT, environment=environment)

    # --- how ---

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while (missing := next(self._missing(), None)) is not None:
            name, what = missing
            log = self.directory / f"{name}.log"
            if time.monotonic() > deadline or self._ended():
                raise ServerFailed(f"{what}; the last lines of {log}:\n{last_lines(log)}")
            time.sleep(0.05)

    def _ended(self) -> bool:
        running = [*self._workers, *([self._scheduler] if self._scheduler else [])]
        return any(process.poll() is not None for process in running)

    def _missing(self) -> Iterator[tuple[str, str]]:
        """Name whose log to read, and what is missing."""
        clients = connected_clients(self._stack.nats.monitor_url)
        if clients["jetrelay-worker"] < len(self._workers):
            yield "worker", "a worker is not connected"
        if self._scheduler and not clients["jetrelay-scheduler"]:
            yield "scheduler", "the scheduler is not connected"
        if not self._workers or self.layout.queues:
            return
        pulled = pulled_consumers(self._stack.nats.monitor_url)
        for context in self.settings.contexts.values():
            for subscription in context.subscriptions.values():
                if (subscription.stream, subscription.durable) not in pulled:
                    yield "worker", f"nobody pulls the subscription {subscription.name}"


def _end(doomed: list[subprocess.Popen[bytes]]) -> None:
    """Ask all to end at once; kill what takes too long."""
    for process in doomed:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    for process in doomed:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            processes.kill(process.pid)
            process.wait()
