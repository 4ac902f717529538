"""The command `relay` as a user starts it: a process of its own, watched through its output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
START_SECONDS = 90.0


class Started:
    """``relay ARGUMENTS`` in ``directory``, without a terminal. Killed, with all it started, at the end.

    Of this checkout, unless ``python`` and ``environment`` say where jetrelay is installed.
    """

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        python: str = sys.executable,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.output = directory / "output.txt"
        environment = environment or {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": os.environ.get("HOME", "/"),
        }
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [python, "-c", "from relay.cli import main; main()", *arguments],
                cwd=directory,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        family = self.family()
        for process in family:
            with suppress(psutil.NoSuchProcess):  # children end with their parent
                process.kill()
        psutil.wait_procs(family, timeout=10)
        self.process.wait(10)

    @property
    def text(self) -> str:
        return self.output.read_text()

    def family(self) -> list[psutil.Process]:
        """The process and all its descendants."""
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def until(self, condition: Callable[[], object], seconds: float = START_SECONDS) -> None:
        """Wait for a condition; fails, showing the output, when the process ends or the time is over."""

        def look() -> object:
            assert self.process.poll() is None, self.text
            return condition()

        try:
            wait_for("it is so", look, seconds)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.text}") from None

    def until_shown(self, words: str, seconds: float = START_SECONDS) -> None:
        self.until(lambda: words in self.text, seconds)

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 60) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)


def shell_variables(path: Path) -> dict[str, str]:
    """The variables that ``. path`` sets."""
    command = ["/bin/sh", "-c", '. "$0" && env', str(path)]
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines())
