"""How soon ``relay dev`` is ready on data that is there already."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Row
from benchmarks.fleet import ROOT
from benchmarks.stage import Stage
from benchmarks.turns import take_turns, wait_until
from relay.devstack import configuration, processes, spawn


def run(stage: Stage) -> Iterator[Row]:
    """Measure starts on an existing directory; the first one, which makes it, does not count."""
    stage.rest()
    directory = stage.directory / "dev"
    directory.mkdir(exist_ok=True)
    shutil.copy(ROOT / "relay.toml", directory)
    _start(directory)
    runs = take_turns(stage, "start", "s", {"relay dev, existing data": lambda: _start(directory)})
    yield Row(
        measure="start of relay dev to ready, existing data",
        unit="s",
        runs=runs["relay dev, existing data"],
        at_most=5,
    )


def _start(directory: Path) -> float:
    """Seconds from the start of the process to its word that it is ready; it is stopped then."""
    log = directory / "dev.log"
    log.unlink(missing_ok=True)
    command = [sys.executable, "-c", "from relay.cli import main; main()", "dev", "--samples"]
    environment = {**configuration.base_environment(inherit=False), "PYTHONPATH": str(ROOT)}
    begin = time.perf_counter()
    process = spawn(command, log=log, directory=directory, environment=environment)
    try:
        wait_until("relay dev is ready", lambda: _ready(process, log), seconds=120)
        return time.perf_counter() - begin
    finally:
        _stop(process)


def _ready(process: subprocess.Popen[bytes], log: Path) -> bool:
    if process.poll() is not None:
        raise SystemExit(f"relay dev ended:\n{log.read_text()}")
    return "ready after" in log.read_text()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        processes.kill(process.pid)
        process.wait()
