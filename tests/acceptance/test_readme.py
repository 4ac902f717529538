"""What the README says is so: its example runs and reaches the handler, its commands exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from dramatiq.cli import make_argument_parser
from typer.testing import CliRunner

from relay.cli import create_app
from tests.acceptance.started import ROOT, Started

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line.partition("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("export ")]


def test_the_example_is_short() -> None:
    [example] = blocks("python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 15


def test_the_example_writes_its_event(database_url: str) -> None:
    [example] = blocks("python")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DATABASE_URL": database_url}
    subprocess.run([sys.executable, "-c", example], env=environment, check=True)
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT event_type, aggregate_id, payload FROM outbox_events").fetchall()
    assert rows == [("vibe_created", "1", {"vibe_id": "1", "title": "First light"})]


def test_the_example_reaches_the_handler_of_relay_dev(server_directory: Path) -> None:
    server_directory.mkdir(parents=True)
    shutil.copy(ROOT / "relay.toml", server_directory)
    [example] = blocks("python")
    (server_directory / "first_event.py").write_text(example)
    [shell] = [block for block in blocks("sh") if "first_event.py" in block]
    # As the reader types it, but for the place of the virtual environment.
    relay = f"{sys.executable} -c 'from relay.cli import main; main()'"
    shell = shell.replace(".venv/bin/python", sys.executable).replace(".venv/bin/relay", relay)
    with Started(server_directory, "dev", "--samples") as started:
        started.until_shown("ready after")
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["/bin/sh", "-ec", shell],
            cwd=server_directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert re.search(r"^vibespro +outbox", done.stdout, re.MULTILINE)
        started.until(lambda: re.search(r"handler   \| .*vibe_created \S+: 200", started.text), 30)
        assert started.stop() == 0


@pytest.mark.parametrize("command", commands())
def test_the_command_exists(command: str) -> None:
    words = shlex.split(command)
    match words:
        case ["make", target]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case [program, *arguments] if program.endswith("relay"):
            assert CliRunner().invoke(create_app(), [*arguments, "--help"]).exit_code == 0
        case ["python", "-m", module]:
            subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT, check=True, capture_output=True)
        case ["dramatiq", *arguments]:
            assert make_argument_parser().parse_args(arguments).broker == "relay.actors"
        case _:
            assert "first_event.py" in command or command == ". .relay/environment"


def test_the_files_it_points_to_are_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []
