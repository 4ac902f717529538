"""A supervisor of a chaos run starts again what has ended, and knows whether somebody has ended it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import psutil

from chaos.supervisor import Supervised, Supervisor
from tests.waiting import DEADLINE_S

SLEEP: Final = "import time; time.sleep(600)"


def test_a_process_that_ends_by_itself_is_told_from_one_that_was_ended(tmp_path: Path) -> None:
    process = Supervised("sleeper", "worker", (sys.executable, "-c", SLEEP), {}, tmp_path / "log")
    supervisor = Supervisor()
    process.start()
    supervisor.start([process])
    ends = {process.kill: 0, process.terminate: 0, process.kill_main: 0}
    try:
        for end, alone in [*ends.items(), (lambda: psutil.Process(process.pid).kill(), 1), (process.kill, 1)]:
            starts = process.starts
            end()
            process.await_successor(starts, DEADLINE_S)
            assert process.ended_alone == alone
    finally:
        supervisor.stop()
