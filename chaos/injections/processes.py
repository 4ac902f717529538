"""Faults of our own processes. The supervisor starts again what has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from chaos.stage import Stage
from chaos.supervisor import Supervised

#: How long a process that was asked to end may take; a process manager's patience.
_GRACE_SECONDS: Final = 15.0
_SUCCESSOR_SECONDS: Final = 30.0


@contextmanager
def killed(stage: Stage, target: str) -> Iterator[None]:
    """SIGKILL to the process and all it started."""
    process = stage.rig.processes[target]
    starts = process.starts
    process.kill()
    try:
        yield
    finally:
        process.await_successor(starts, _SUCCESSOR_SECONDS)


@contextmanager
def terminated(stage: Stage, target: str) -> Iterator[None]:
    """SIGTERM, and SIGKILL to what does not obey in time."""
    process = stage.rig.processes[target]
    starts = process.starts
    process.terminate()
    try:
        yield
    finally:
        if not _ended(process, starts):
            stage.note(f"did not end within {_GRACE_SECONDS:.0f} s and was killed")
            process.kill()
        process.await_successor(starts, _SUCCESSOR_SECONDS)


@contextmanager
def frozen(stage: Stage, target: str) -> Iterator[None]:
    """SIGSTOP, later SIGCONT: a process that comes back and does not know how long it was away."""
    process = stage.rig.processes[target]
    process.freeze()
    try:
        yield
    finally:
        process.thaw()


@contextmanager
def orphaned(stage: Stage, target: str) -> Iterator[None]:
    """SIGKILL to the main process alone: what it started works on beside its successor until it is found."""
    process = stage.rig.processes[target]
    starts = process.starts
    orphans = process.kill_main()
    try:
        process.await_successor(starts, _SUCCESSOR_SECONDS)
        yield
    finally:
        stage.note(f"{orphans.kill()} orphans")
        process.await_successor(starts, _SUCCESSOR_SECONDS)


def _ended(process: Supervised, starts: int) -> bool:
    deadline = time.monotonic() + _GRACE_SECONDS
    while process.running and process.starts == starts:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
