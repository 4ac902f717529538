"""Start processes that do not outlive us; find, freeze and kill whole process trees."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relay import children
from relay.devstack import private_files
from relay.devstack.as_root import Account
from relay.devstack.errors import DevStackError, missing

try:
    import psutil
except ImportError as error:
    raise missing("psutil") from error

#: Marks the processes of a fleet, and all that they start, in their environment.
_MARK = "JETRELAY_FLEET"
_POLL_SECONDS = 0.01
# A clock step may change a start time a little between two readings. A reused pid differs by far more.
_SAME_START_SECONDS = 1.0


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    directory: Path,
    environment: Mapping[str, str],
    stop_signal: signal.Signals = signal.SIGTERM,
    account: Account | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start ``command`` as `relay.children.start` does. Its output is appended to ``log``."""
    with open(log, "ab", opener=private_files.opener) as output:
        return children.start(
            command,
            environment=environment,
            output=output,
            directory=directory,
            stop_signal=stop_signal,
            account=(account.uid, account.gid) if account else (-1, -1),
            stdin=stdin,
        )


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, known by pid and start time: the system may give the pid to another process later."""

    pid: int
    created: float
    """Start of the process, seconds since the epoch."""

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Describe a process that we have not yet waited for. Raises DevStackError if there is none."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.NoSuchProcess as error:
            raise DevStackError(f"process {pid} is gone") from error

    def find(self, marker: str) -> psutil.Process | None:
        """Return the process, if the pid is still the same process and its command line holds ``marker``."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < _SAME_START_SECONDS
            if same and any(marker in word for word in process.cmdline()):
                return process
        return None


def describe(pid: int) -> str:
    """Say what a process does: ``process 7, nats-server, is sleeping after 0.2 s of processor time``."""
    try:
        process = psutil.Process(pid)
        used = sum(process.cpu_times()[:2])
        return f"process {pid}, {process.name()}, is {process.status()} after {used:.1f} s of processor time"
    except psutil.NoSuchProcess:
        return f"process {pid} is gone"


def working_in(directory: Path, program: str) -> list[psutil.Process]:
    """List the processes of ``program`` whose working directory is ``directory``."""
    matching = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # ended meanwhile, or somebody else's
            if process.name() == program and Path(process.cwd()) == directory:
                matching.append(process)
    return matching


def freeze(pid: int) -> list[psutil.Process]:
    """Stop a process and all its descendants (SIGSTOP) and return them. Children forked meanwhile are found too.

    Process groups do not help: PostgreSQL gives each backend a session of its own.
    """
    frozen: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        fresh = [root]
        while fresh:
            signal_all(fresh, signal.SIGSTOP)
            _wait_until(fresh, {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}, seconds=5)
            frozen += fresh
            fresh = [child for child in root.children(recursive=True) if child not in frozen]
    return frozen


def thaw(pid: int) -> None:
    """Let a process and all its descendants continue (SIGCONT)."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        signal_all([*root.children(recursive=True), root], signal.SIGCONT)


def kill(pid: int) -> None:
    """Kill a process with all its descendants (SIGKILL) and wait until they are gone."""
    kill_all(freeze(pid))


# --- what a killed run left behind ---


def marked(environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the environment that marks a process, and all it starts, as belonging to ``directory``."""
    return {**environment, _MARK: str(directory)}


def end_leftovers(directory: Path) -> None:
    """Kill every process that was started with the mark of this directory, descendants included."""
    kill_all([process for process in psutil.process_iter() if _is_ours(process, directory)])


def _is_ours(process: psutil.Process, directory: Path) -> bool:
    try:
        return bool(process.environ().get(_MARK) == str(directory))
    except (psutil.Error, OSError):  # ended meanwhile, or somebody else's
        return False


# --- all of some processes ---


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to each process and wait until all are gone. Raises DevStackError after 10 s."""
    doomed = list(processes)
    signal_all(doomed, signal.SIGKILL)
    if not _wait_until(doomed, set(), seconds=10):
        raise DevStackError(f"cannot kill the processes {[process.pid for process in doomed]}")


def end(process: psutil.Process, stop_signal: signal.Signals, seconds: float) -> None:
    """End a process, which need not be our child, by ``stop_signal``. Kill it after ``seconds``."""
    thaw(process.pid)
    signal_all([process], stop_signal)
    if not _wait_until([process], set(), seconds):
        kill(process.pid)


def signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each process that is still there."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _wait_until(processes: Iterable[psutil.Process], states: set[str], seconds: float) -> bool:
    """Wait until each process is gone, a zombie (only its parent can reap it) or in one of ``states``."""
    deadline = time.monotonic() + seconds
    reached = {*states, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    while True:
        if all(_state(process) in reached for process in processes):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)


def _state(process: psutil.Process) -> str:
    try:
        state = str(process.status()) if process.is_running() else psutil.STATUS_DEAD
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_DEAD)
    # The state of a process is that of its first thread. The others stop a little later, each by itself.
    return psutil.STATUS_RUNNING if state == psutil.STATUS_STOPPED and _some_thread_runs(process.pid) else state


def _some_thread_runs(pid: int) -> bool:
    """Whether a thread of a stopped process has not stopped yet. False where there is no ``/proc``."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if stat.read_text(errors="replace").rpartition(")")[2].split()[0] not in {"T", "t", "Z", "X"}:
                return True
    return False
