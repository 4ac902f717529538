"""Find and end the processes that a run in a directory left behind when it was itself killed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from relay.devstack import processes

#: Tells our processes, and whatever they start, from all others.
_MARK: Final = "JETRELAY_FLEET"


def marked(environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the environment by which a process, and all it starts, is known as one of ``directory``'s."""
    return {**environment, _MARK: str(directory)}


def end_leftovers(directory: Path) -> None:
    """Kill every process that was started with the mark of this directory, descendants included."""
    processes.kill_all([process for process in psutil.process_iter() if _is_ours(process, directory)])


def _is_ours(process: psutil.Process, directory: Path) -> bool:
    try:
        return bool(process.environ().get(_MARK) == str(directory))
    except (psutil.Error, OSError):  # ended meanwhile, or somebody else's
        return False
