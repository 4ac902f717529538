"""Child processes that end with the process that started them, in whatever way it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

_LAUNCH: Final = Path(__file__).with_name("launch.py")
# Linux ties PR_SET_PDEATHSIG to the *thread* that forked. So one thread that lives as long as the interpreter
# forks every child. Otherwise a child started from a short-lived thread would end with that thread.
_LAUNCHER: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="relay-launcher")


def start(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str],
    output: IO[bytes] | None = None,
    directory: Path | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
    account: tuple[int, int] = (-1, -1),
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start ``command`` in its own session, as ``account`` (uid and gid) if that is given.

    ``output`` takes what it writes; without it, it writes where we write. The environment is exactly the one
    given. Secrets belong there, because every user can read a command line. On Linux the child gets
    ``stop_signal`` when this process ends, in whatever way. ``command[0]`` must be an absolute path. Raises
    OSError when nothing can be started.
    """
    shim = [sys.executable, "-I", "-S", _LAUNCH, os.getpid(), int(stop_signal), *account]
    return _LAUNCHER.submit(
        subprocess.Popen,
        [str(word) for word in [*shim, *command]],
        stdin=stdin,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        cwd=directory,
        env=dict(environment),
        start_new_session=True,
    ).result()


def kill_group(pid: int) -> None:
    """Kill a child that leads its own session, with all of its children that are left (SIGKILL)."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # none is left; some systems refuse it for those that ended
        return


def ended_by(status: int) -> str:
    """Say how a child ended, from the status that Popen gives."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
