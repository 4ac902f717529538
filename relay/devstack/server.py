"""One server of a development stack: what the three have in common.

A subclass says how to prepare the directory, which command to run, and how to check that the server answers.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Self

from relay.devstack import private_files, processes
from relay.devstack.as_root import Account
from relay.devstack.errors import DevStackError, ServerFailed, ServerNotUp
from relay.devstack.logs import rotate
from relay.devstack.ports import free_port, is_free

_STOP_SECONDS = 20.0
_POLL_SECONDS = 0.02
# How much of a log an error shows; a trace has some lines for each thread of the server.
_LOG_LINES, _TRACE_LINES = 20, 500
# A look at a server takes no longer than this. If it did, the machine stood still: it slept, for example.
_LONGEST_LOOK_SECONDS = 5.0
# Transient reasons to end: another process took the port, or remains of a killed server are still there.
_TRANSIENT = re.compile(r"address already in use|pre-existing shared memory block", re.IGNORECASE)


class Server(ABC):
    """A server process on a loopback port, with its files in a directory of its own.

    The port is chosen at the first start, kept over restarts and remembered in the directory. The process is
    remembered too: after its parent was killed, the next start in this directory ends it. Clients need the random
    password in the directory, in a file that only we can read. Safe to call from any thread; calls on one server
    wait for each other.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    #: Makes the server write to its log what it waits for, and end. None: it has no such signal.
    trace_signal: ClassVar[signal.Signals | None] = None
    #: How long a start may take.
    start_seconds: float = 60.0

    def __init__(self, directory: Path | str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.directory = Path(directory).absolute()
        self.log_path = self.directory / f"{self.name}.log"
        self._state_path = self.directory / "server.json"
        self._process: subprocess.Popen[bytes] | None = None
        self._account: Account | None = None
        self._port: int | None = None
        self._password: str | None = None
        self._was_ready = False
        self._log_start = 0
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- what a subclass fills in ---

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect, password included; raises ServerNotUp before the first start."""

    @abstractmethod
    def prepare(self) -> Sequence[str | Path]:
        """Prepare the directory and return the command to run. Called before each start of the process."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server takes work now. Must return within seconds; an OSError counts as no."""

    # --- state ---

    @property
    def port(self) -> int:
        """The port on 127.0.0.1; raises ServerNotUp before the first start."""
        if self._port is None:
            raise ServerNotUp(f"{self.name} was never started")
        return self._port

    @property
    def password(self) -> str:
        """The password that clients need; raises ServerNotUp before the first start.

        It is part of ``url``. It is kept in files that only we can read, and never in a command line.
        """
        if self._password is None:
            raise ServerNotUp(f"{self.name} was never started")
        return self._password

    @property
    def pid(self) -> int:
        """The server's main process; raises ServerNotUp when it does not run."""
        process = self._process
        if process is None or process.poll() is not None:
            raise ServerNotUp(f"{self.name} does not run")
        return process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there. A paused process counts."""
        return self._process is not None and self._process.poll() is None

    # --- verbs ---

    def start(self) -> None:
        """Start the server and return once it answers; does nothing if it runs.

        Raises ServerFailed, with the last lines of the log, if it ends or does not answer within 60 s;
        MissingExtraError if its wheel is not installed.
        """
        with self._lock:
            self.launch()
            self.wait()

    def launch(self) -> None:
        """Do the first half of ``start``: run the process, and do not wait for it."""
        with self._lock:
            if not self.running:
                try:
                    self._make_directory()
                    self.end_predecessor()
                    self._run()
                except PermissionError as error:
                    raise DevStackError(
                        f"{self.name} cannot use {self.directory}: {error}",
                        hint="it may belong to another user; remove it or choose another directory",
                    ) from error

    def wait(self) -> None:
        """Do the second half of ``start``: return once the server answers, launched or resumed."""
        with self._lock:
            waited, last = 0.0, self._clock()
            while not self._answers():
                now = self._clock()
                waited, last = waited + min(now - last, _LONGEST_LOOK_SECONDS), now
                if not self.running and _TRANSIENT.search(self._log_since_start()):
                    self._run()
                elif not self.running:
                    raise self._failure("ended while starting")
                if waited > self.start_seconds:
                    seen = processes.describe(self._process.pid) if self._process else "no process"
                    if self.trace_signal is not None:
                        self._stop(self.trace_signal)
                    self.kill()
                    raise self._failure(
                        f"did not answer within {self.start_seconds:.0f} s ({seen})",
                        lines=_TRACE_LINES if self.trace_signal else _LOG_LINES,
                    )
                time.sleep(_POLL_SECONDS)
            self._was_ready = True

    def stop(self) -> None:
        """Ask the server to end and wait for it; kills it after 20 s. Does nothing if it does not run."""
        self._stop(self.stop_signal)

    def kill(self) -> None:
        """Kill the server and all its children at once (SIGKILL); does nothing if it does not run."""
        with self._lock:
            if self._process is not None:
                if self.running:
                    processes.kill(self._process.pid)
                self._process.wait()

    def restart(self) -> None:
        """Stop the server and start it again on the same port."""
        with self._lock:
            self.stop()
            self.start()

    def pause(self) -> None:
        """Freeze the server and all its children (SIGSTOP): connections stay open and nothing answers."""
        with self._lock:
            processes.freeze(self.pid)

    def resume(self) -> None:
        """Let a paused server continue (SIGCONT); harmless if it is not paused."""
        with self._lock:
            processes.thaw(self.pid)

    # --- how ---

    def choose_port(self) -> int:
        """Return a port that nobody listens on."""
        return free_port()

    def end_predecessor(self) -> None:
        """End the server that an earlier process left behind in this directory, and take over its port.

        Ends only a process with the remembered pid and start time, and this directory in its command line.
        """
        try:
            state = json.loads(self._state_path.read_text())
            identity = processes.ProcessIdentity(pid=int(state["pid"]), created=float(state["created"]))
            port = int(state["port"])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return  # none yet, or half-written
        if left_behind := identity.find(marker=str(self.directory)):
            processes.end(left_behind, self.stop_signal, _STOP_SECONDS)
        if self._port is None and is_free(port):
            self._port = port

    def _make_directory(self) -> None:
        private_files.make_directory(self.directory)
        self._password = private_files.password(self.directory / "password")
        rotate(self.log_path)

    def _run(self) -> None:
        if self._port is None or not (self._was_ready or is_free(self._port)):
            self._port = self.choose_port()  # no client knows the old port yet
        command = self.prepare()
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._process = self._spawn(command)
        created = processes.ProcessIdentity.of(self._process.pid).created
        state = {"pid": self._process.pid, "created": created, "port": self._port}
        private_files.write(self._state_path, json.dumps(state))

    def _spawn(self, command: Sequence[str | Path], *, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        # Settings of the user's shell (PGOPTIONS, a locale that is not installed, …) must not reach a server.
        return processes.spawn(
            command,
            log=self.log_path,
            directory=self.directory,
            environment={"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/local/bin:/usr/bin:/bin"},
            stop_signal=self.stop_signal,
            account=self._account,
            stdin=stdin,
        )

    def _answers(self) -> bool:
        try:
            return self.running and self.answers()
        except OSError:
            return False

    def _stop(self, number: signal.Signals) -> None:
        with self._lock:
            if self._process is None or not self.running:
                return
            processes.thaw(self._process.pid)
            self._process.send_signal(number)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def _failure(self, what: str, *, lines: int = _LOG_LINES) -> ServerFailed:
        log = self._log_since_start().splitlines()[-lines:]
        return ServerFailed(f"{self.name} {what}; the last lines of {self.log_path}:\n" + "\n".join(log))

    def _log_since_start(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")
