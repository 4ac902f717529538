"""The programs of examples/node, installed once and run beside a fleet."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.acceptance.fleet import ROOT
from tests.waiting import wait_for

SOURCE = ROOT / "examples" / "node"
INSTALL_SECONDS = 120
RUN_SECONDS = 60
#: What npm says when it cannot reach its registry. Anything else is a mistake of ours.
UNREACHABLE = (
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ECONNRESET",
    "ETIMEDOUT",
    "ENETUNREACH",
    "ERR_SOCKET_TIMEOUT",
)


def install(directory: Path) -> str | None:
    """Install the examples in the versions of the lockfile; returns why it cannot be done here, if so."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return "node and npm are not installed"
    shutil.copytree(SOURCE, directory, ignore=shutil.ignore_patterns("node_modules"))
    command = [npm, "ci", "--ignore-scripts", "--prefer-offline", "--fetch-retries=1", "--fetch-timeout=20000"]
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"npm did not end within {INSTALL_SECONDS} s"
    if any(code in done.stderr for code in UNREACHABLE):
        return "npm cannot reach its registry"
    assert done.returncode == 0, done.stderr
    return None


class Program:
    """``node ARGUMENTS``, one that runs until it is stopped. Ready when it says so."""

    def __init__(self, directory: Path, variables: dict[str, str], *arguments: str) -> None:
        self.log = directory / f"{arguments[0]}-{len(list(directory.glob('*.log')))}.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [_node(), *arguments],
                cwd=directory,
                env={"PATH": os.environ["PATH"], **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def __enter__(self) -> Program:
        try:
            wait_for(f"{self.process.args} is ready", self._ready, RUN_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM and wait; returns the exit code."""
        self.process.terminate()
        return self.process.wait(RUN_SECONDS)

    def _ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return "ready" in self.log.read_text()


def run(directory: Path, variables: dict[str, str], *arguments: str) -> list[str]:
    """Run a program to its end; returns its lines."""
    done = subprocess.run(
        [_node(), *arguments],
        cwd=directory,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def effects(path: Path) -> list[dict[str, Any]]:
    """What a program has done: the lines of its file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _node() -> str:
    found = shutil.which("node")
    assert found is not None
    return found
