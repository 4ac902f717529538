"""Find and end the processes that a killed run left behind in a directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from relay.devstack import processes

#: Marks our processes, and all that they start.
_MARK: Final = "JETRELAY_FLEET"


def marked(environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the environment that marks a process, and all it starts, as belonging to ``directory``."""
    return {**environment, _MARK: str(directory)}


def end_leftovers(directory: Path) -> None:
    """Kill every process that was started with the mark of this directory, descendants included."""
    processes.kill_all([process for process in psutil.process_iter() if _is_ours(process, directory)])


def _is_ours(process: psutil.Process, directory: Path) -> bool:
    try:
        return bool(process.environ().get(_MARK) == str(directory))
    except (psutil.Error, OSError):  # ended meanwhile, or somebody else's
        return False
