"""What the README says is so: its example runs and reaches the handler. Its commands: test_doc_blocks.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg

from tests.acceptance.started import ROOT, Started
from tests.pages import code

README = (ROOT / "README.md").read_text()


def test_the_example_is_short() -> None:
    example = code("README.md", "python", 1)
    assert len([line for line in example.splitlines() if line.strip()]) <= 15


def test_the_example_writes_its_event(database_url: str) -> None:
    example = code("README.md", "python", 1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DATABASE_URL": database_url}
    subprocess.run([sys.executable, "-c", example], env=environment, check=True)
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT event_type, aggregate_id, payload FROM outbox_events").fetchall()
    assert rows == [("vibe_created", "1", {"vibe_id": "1", "title": "First light"})]


def test_the_example_reaches_the_handler_of_relay_dev(server_directory: Path) -> None:
    server_directory.mkdir(parents=True)
    shutil.copy(ROOT / "relay.toml", server_directory)
    example = code("README.md", "python", 1)
    (server_directory / "first_event.py").write_text(example)
    # As the reader types it, but for the place of the virtual environment.
    relay = f"{sys.executable} -c 'from relay.cli import main; main()'"
    shell = code("README.md", "sh", 2).replace(".venv/bin/python", sys.executable)
    shell = shell.replace(".venv/bin/relay", relay)
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


def test_the_files_it_points_to_are_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []
