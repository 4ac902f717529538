"""The whole system on one machine: servers, scheduler, workers, and sample handlers for contexts that need one."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from relay.devstack import configuration, http_checks, private_files, processes, provision
from relay.devstack.configuration import Configuration, Subscriptions
from relay.devstack.errors import DevStackError, ServerFailed
from relay.devstack.logs import LogConsole, last_lines, rotate
from relay.devstack.ports import LOOPBACK, free_port
from relay.devstack.stack import DevStack

_READY_SECONDS: Final = 60.0
_RELAY: Final = "from relay.cli import main; main()"
_STOP_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DevFleetOptions:
    """What to run: ``processes`` with ``threads`` each.

    ``samples``: sample handlers for the subscriptions that name no handler ("unnamed"), or for all ("all").
    ``inherit``: whether RELAY_* variables of the shell count. ``environment`` wins over them and over the file.
    ``ops``: whether to serve the console of operators. ``fresh``: start with empty databases and streams.
    ``modules``: where workers find the modules that the configuration names; the working directory if None.
    """

    directory: Path
    config: Path | None = None
    processes: int = 1
    threads: int = 8
    samples: Literal["unnamed", "all"] = "unnamed"
    inherit: bool = True
    ops: bool = False
    fresh: bool = False
    modules: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Fleet:
    """Starts everything in order, watches it, stops it in the opposite order. Used from one thread.

    Children end when this process ends, in whatever way. The next start in the same directory ends any process
    that is left.
    """

    def __init__(self, options: DevFleetOptions, console: LogConsole | None = None) -> None:
        self.options = options
        self.stack = DevStack(options.directory)
        self.handlers: dict[str, str] = {}
        #: Where the console of operators is; None if it does not run.
        self.ops: str | None = None
        self._console = console
        self._configuration: Configuration | None = None
        self._members: list[_Member] = []

    @property
    def configuration(self) -> Configuration:
        """The configuration of the processes. Raises DevStackError before the start."""
        if self._configuration is None:
            raise DevStackError("the fleet was never started")
        return self._configuration

    @property
    def shell_file(self) -> Path:
        """The file that a shell reads, with ``. FILE``, to use the same servers."""
        return self.stack.directory / "environment"

    def sampled(self) -> Subscriptions:
        """Say which subscriptions a sample handles, by context. Raises ConfigurationError."""
        everything = self.options.samples == "all"
        return configuration.sampled(self.options.config, self._environment(), everything=everything)

    def start(self) -> None:
        """Start everything and return once every process is connected.

        Raises ConfigurationError, MissingExtraError, StackBusy and ServerFailed. Call `stop` after an error too.
        """
        self.prepare()
        self.start_processes()

    def prepare(self) -> None:
        """Start the servers and make databases, tables and streams. Raises as `start` does."""
        sampled = self.sampled()
        self.stack.start()
        processes.end_leftovers(self.stack.directory)
        self.handlers = {name: f"http://{LOOPBACK}:{free_port()}/handle" for name in sampled}
        handlers = {
            (name, it): self.handlers[name] for name, subscriptions in sampled.items() for it in subscriptions
        }
        self._configuration = configuration.configure(
            self.stack, self.options.config, self._environment(), handlers
        )
        self._configuration.write_shell(self.shell_file)
        if self.options.fresh:
            provision.wipe(self.stack, self.configuration.settings)
        provision.prepare(self.stack, self.configuration.settings)
        self._follow_servers()

    def start_processes(self) -> None:
        """Start the handlers, workers and scheduler that do not run, and wait until all are connected.

        Raises ServerFailed.
        """
        self._members = [member for member in self._members if member.process.poll() is None]
        running = {member.name for member in self._members}
        for name, command in self._commands().items():
            if name not in running:
                self._start(name, command)
        self._await_ready()

    def ended(self) -> str | None:
        """Say which process has ended, with the last lines of its log. None while all run."""
        for member in self._members:
            if (code := member.process.poll()) is not None:
                return f"{member.name} ended with status {code}; its last lines:\n{last_lines(member.log)}"
        for server in self.stack.servers:
            if not server.running:
                return f"{server.name} ended; its last lines:\n{last_lines(server.log_path)}"
        return None

    def stop(self) -> None:
        """End everything gently: scheduler and workers finish their work, then handlers, then servers."""
        self.stop_processes()
        self.stack.stop()

    def stop_processes(self) -> None:
        """End the processes gently, and leave the servers."""
        handlers = [member for member in self._members if member.name.startswith("handler")]
        others = [member for member in self._members if member not in handlers]
        for group in (others, handlers):
            for member in group:
                with contextlib.suppress(ProcessLookupError):
                    member.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + _STOP_SECONDS
            for member in group:
                _end(member.process, deadline)
        self._members.clear()

    def kill(self) -> None:
        """End everything at once."""
        for member in self._members:
            processes.kill(member.process.pid)
            member.process.wait()
        for server in self.stack.servers:
            server.kill()
        self.stack.stop()

    # --- how ---

    def _environment(self) -> dict[str, str]:
        return {**configuration.base_environment(inherit=self.options.inherit), **self.options.environment}

    def _commands(self) -> dict[str, Sequence[str]]:
        python, commands = [sys.executable, "-m"], dict[str, Sequence[str]]()
        for context, url in self.handlers.items():
            name = "handler" if len(self.handlers) == 1 else f"handler-{context}"
            port = str(urlsplit(url).port)
            commands[name] = [*python, "relay.devstack.sample", "--context", context, "--port", port]
        size = ["--processes", str(self.options.processes), "--threads", str(self.options.threads)]
        patience = ["--worker-shutdown-timeout", str(int((_STOP_SECONDS - 5) * 1000))]
        commands["worker"] = [*python, "dramatiq", "relay.actors", *size, *patience]
        commands["scheduler"] = [*python, "scheduler"]
        if self.options.ops:
            self.ops = self.ops or f"http://{LOOPBACK}:{free_port()}/"
            commands["ops"] = [sys.executable, "-c", _RELAY, "ops", "--port", str(urlsplit(self.ops).port)]
        return commands

    def _start(self, name: str, command: Sequence[str]) -> None:
        logs = self.stack.directory / "logs"
        private_files.make_directory(logs)
        log = logs / f"{name}.log"
        rotate(log)
        self._follow(name, log)
        common = {"RELAY_LOG_FORMAT": "console", "PYTHONUNBUFFERED": "1"}
        environment = processes.marked({**common, **self.configuration.environment}, self.stack.directory)
        home = self.options.modules or Path.cwd()
        process = processes.spawn(command, log=log, directory=home, environment=environment)
        self._members.append(_Member(name, process, log))

    def _follow(self, name: str, log: Path) -> None:
        if self._console is not None:
            self._console.follow(name, log)

    def _follow_servers(self) -> None:
        for server in self.stack.servers:
            self._follow(server.name, server.log_path)

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while missing := next(self._not_ready(), None):
            if failure := self.ended():
                raise ServerFailed(failure)
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"{missing} is not ready after {_READY_SECONDS:.0f} s; see {self._members[0].log.parent}"
                )
            time.sleep(0.05)

    def _not_ready(self) -> Iterator[str]:
        """Name what is not ready: handlers must answer, processes be connected, subscriptions be pulled."""
        for url in self.handlers.values():
            if http_checks.get(url.replace("/handle", "/healthz")) is None:
                yield f"the handler at {url}"
        if self.ops and http_checks.get(f"{self.ops}healthz") is None:
            yield "the console"
        clients = http_checks.connected_clients(self.stack.nats.monitor_url)
        if clients["jetrelay-worker"] < self.options.processes:
            yield "the worker"
        if not clients["jetrelay-scheduler"]:
            yield "the scheduler"
        pulled = http_checks.pulled_consumers(self.stack.nats.monitor_url)
        for context in self.configuration.settings.contexts.values():
            for subscription in context.subscriptions.values():
                if (subscription.stream, subscription.durable) not in pulled:
                    yield f"the subscription {subscription.name} of {context.name}"


def _end(process: subprocess.Popen[bytes], deadline: float) -> None:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        processes.kill(process.pid)
        process.wait()
