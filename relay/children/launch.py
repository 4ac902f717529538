"""A program that becomes another program. First it drops root and makes sure that it ends with its parent.

It runs by path as ``python -I -S launch.py PARENT SIGNAL UID GID COMMAND…``, so it imports nothing of ours. It
costs some 20 ms for each start. The alternative, ``preexec_fn``, may deadlock in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _drop_to(uid: int, gid: int) -> None:
    """Give up root for good. A negative ``uid`` means: keep the user."""
    if uid < 0:
        return
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def _die_with(parent: int, death_signal: int) -> None:
    """Ask Linux for a signal when the parent ends. Must follow ``_drop_to``: a change of user clears it."""
    if not sys.platform.startswith("linux"):
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before we asked
        sys.exit(1)


def main(arguments: list[str]) -> None:
    """Replace this process by the command; never returns."""
    parent, death_signal, uid, gid = (int(argument) for argument in arguments[:4])
    command = arguments[4:]
    # Ignored signals survive exec: Python ignores SIGPIPE, and a shell's background job ignores SIGINT.
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    _drop_to(uid, gid)
    _die_with(parent, death_signal)
    os.execv(command[0], command)  # noqa: S606 - the command is an absolute path chosen by our caller


if __name__ == "__main__":
    main(sys.argv[1:])
