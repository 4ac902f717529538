"""A first day, from the wheel in an empty folder: what a newcomer types, and what an operator asks next.

Every block of the tutorial is executed, and what it shows is what comes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.devstack.ports import free_port
from tests.acceptance.started import ROOT, Started, shell_variables
from tests.pages import blocks
from tests.waiting import wait_for

_SECONDS = 60.0


#: Where the rows of the shop go, and a time after which they have ended long ago.
_ARCHIVE = """
[contexts.shop.archive]
after = "90d"
directory = "{}"
"""
_LONG_AGO = "UPDATE outbox_events SET published_at = published_at - interval '100 days' RETURNING id"


def installed(home: Path) -> Path:
    """Build the wheel and install it into an environment of its own; return its Python.

    The libraries that it needs are those of the environment of the tests, so that nothing is fetched.
    """
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", home, ROOT],
        check=True,
        timeout=120,
    )
    python = home / ".venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / ".venv"], check=True, timeout=120)
    [wheel] = home.glob("jetrelay-*.whl")
    subprocess.run(
        [*pip, "--python", python, "install", "--no-deps", "--no-index", wheel], check=True, timeout=120
    )
    [ours], theirs = python.parents[1].glob("lib/*/site-packages"), sysconfig.get_path("purelib")
    (ours / "libraries.pth").write_text(theirs)
    return python


class Newcomer:
    """Terminals, a project, and what is typed in them."""

    def __init__(self, home: Path, terminals: ExitStack) -> None:
        self.home, self.directory, self.port = home, home, str(free_port())
        self._terminals, self._dev = terminals, ExitStack()
        self._printed = ""
        home.mkdir(parents=True)
        self._python = installed(home)
        uvicorn = self._python.with_name("uvicorn")  # a program of a library
        uvicorn.write_text(f'#!/bin/sh\nexec {self._python} -m uvicorn "$@"\n')
        uvicorn.chmod(0o755)
        self.environment = {"PATH": f"{self._python.parent}:{os.environ['PATH']}", "HOME": str(home)}

    def does(self, language: str, block: str) -> None:
        block = block.replace("8001", self.port)
        match language, block.split():
            case "sh", ["python", "-m", "venv", *_] | [".", ".venv/bin/activate", *_]:
                pass  # installed, and done before each line that is typed here
            case "sh", ["relay", "dev"]:
                self.runs()
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

    def runs(self) -> None:
        """Stop `relay dev`, if it runs, and start it."""
        self._dev.close()
        dev = Started(self.directory, "dev", python=str(self._python), environment=self.environment)
        self._dev.enter_context(dev)
        self._terminals.callback(self._dev.close)
        dev.until_shown("ready after")

    def asks(self, question: str) -> Any:
        """Return what a command prints as JSON."""
        self.types(f"relay {question} --json")
        return json.loads(self._printed)

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

        def shown_by_now() -> bool:
            if all(re.search(line, self._printed) for line in wanted):
                return True
            assert "producer.py" not in self._typed, self._printed
            self.types(self._typed)
            return False

        wait_for(f"it prints {shown}", shown_by_now, _SECONDS)

    def serves(self, block: str) -> None:
        command = ["/bin/sh", "-ec", f". .relay/environment; exec {block}"]
        with (self.home / "service.txt").open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.directory, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )
        self._terminals.callback(process.wait)
        self._terminals.callback(process.terminate)

    def until_served(self, words: str) -> None:
        wait_for(f"it says {words}", lambda: words in (self.home / "service.txt").read_text(), _SECONDS)


def test_a_first_day(server_directory: Path) -> None:
    with ExitStack() as terminals:
        newcomer = Newcomer(server_directory, terminals)
        for block in blocks("docs/tutorial/first-steps.md"):
            newcomer.does(block.language, block.text)
        newcomer.until_served("a lamp is on its way")
        understands_the_dead_letter(newcomer)
        archives_the_shop(newcomer)
        assert newcomer.asks("doctor")["findings"] == []


def understands_the_dead_letter(newcomer: Newcomer) -> None:
    [letter] = newcomer.asks("dlq list --all --reason raised_Poison")
    life = json.dumps(newcomer.asks(f"explain {letter['message_id']}"))
    for word in ("order_placed", "Poison: an order must cost something", "dlq.requeue"):
        assert word in life, life


def archives_the_shop(newcomer: Newcomer) -> None:
    variables = shell_variables(newcomer.directory / ".relay" / "environment")
    with psycopg.connect(variables["RELAY_CONTEXTS__SHOP__DATABASE_URL"]) as connection:
        events = [str(event) for (event,) in connection.execute(_LONG_AGO)]
    place = newcomer.directory / "archive"
    place.mkdir()
    with (newcomer.directory / "relay.toml").open("a") as file:
        file.write(_ARCHIVE.format(place))
    newcomer.types("relay archive run")
    [batch] = newcomer.asks("archive list")
    assert batch["rows"] == len(events) == 3
    newcomer.types("relay archive verify")
    assert events[0] in json.dumps(newcomer.asks(f"explain {events[0]} --archive"))
    assert newcomer.asks("outbox list --status published --context shop") == []
