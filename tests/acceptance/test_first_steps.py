"""The tutorial, as a newcomer types it: every block of it is executed, and what it shows is what comes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from relay.devstack.ports import free_port
from tests.acceptance.started import ROOT, Started

PAGE = (ROOT / "docs" / "tutorial" / "first-steps.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECONDS = 60.0


class Newcomer:
    """Terminals, a project, and what is typed in them."""

    def __init__(self, home: Path, terminals: ExitStack) -> None:
        self.home, self.directory, self.port = home, home, str(free_port())
        self._terminals, self._dev = terminals, ExitStack()
        self._printed = ""
        programs = home / "bin"
        programs.mkdir(parents=True)
        self._program(programs / "relay", "-c 'from relay.cli import main; main()'")
        self._program(programs / "python", "")
        self._program(programs / "uvicorn", "-m uvicorn")
        path = f"{programs}:{os.environ['PATH']}"
        self.environment = {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(home)}

    def _program(self, path: Path, arguments: str) -> None:
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        path.chmod(0o755)

    def does(self, language: str, block: str) -> None:
        block = block.replace("8001", self.port)
        match language, block.split():
            case "sh", ["python", "-m", "venv", *_] | [".", ".venv/bin/activate", *_]:
                pass  # installed, and done before each line that is typed here
            case "sh", ["relay", "dev"]:
                self._dev.close()
                started = self._dev.enter_context(Started(self.directory, "dev"))
                self._terminals.callback(self._dev.close)
                started.until_shown("ready after")
            case "sh", ["uvicorn", *_]:
                self.serves(block)
            case "sh", ["relay", "init", name, "cd", _]:
                self.types("relay init " + name)
                self.directory /= name
            case "sh", _:
                self.types(block)
            case "python", ["#", name, *_]:
                (self.directory / name).write_text(block)
            case "text", _:
                self.sees(block)
            case _:
                pytest.fail(f"nobody knows how to execute {language}: {block}")

    def types(self, block: str) -> None:
        """Type it in the second terminal."""
        toml = self.directory / "relay.toml"
        if toml.exists():
            toml.write_text(toml.read_text().replace("8001", self.port))
        self._typed = block
        there = (self.directory / ".relay" / "environment").exists()
        done = subprocess.run(
            ["/bin/sh", "-ec", f"{'. .relay/environment; ' if there else ''}{block}"],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self._printed = done.stdout

    def sees(self, shown: str) -> None:
        """Compare what is printed; a list is asked for again until it is so."""
        wanted = [".*".join(map(re.escape, line.split("…"))) for line in shown.splitlines()]
        deadline = time.monotonic() + _SECONDS
        while not all(re.search(line, self._printed) for line in wanted):
            assert "producer.py" not in self._typed, self._printed
            assert time.monotonic() < deadline, self._printed
            self.types(self._typed)

    def serves(self, block: str) -> None:
        command = ["/bin/sh", "-ec", f". .relay/environment; exec {block}"]
        with (self.home / "service.txt").open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.directory, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )
        self._terminals.callback(process.wait)
        self._terminals.callback(process.terminate)

    def until_served(self, words: str) -> None:
        deadline = time.monotonic() + _SECONDS
        while words not in (said := (self.home / "service.txt").read_text()):
            assert time.monotonic() < deadline, said
            time.sleep(0.05)


def test_every_block_of_the_tutorial_does_what_it_says(server_directory: Path) -> None:
    with ExitStack() as terminals:
        newcomer = Newcomer(server_directory, terminals)
        for language, block in _BLOCK.findall(PAGE):
            newcomer.does(language, block)
        newcomer.until_served("a lamp is on its way")
