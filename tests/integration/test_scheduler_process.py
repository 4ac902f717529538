"""``python -m scheduler``: what it says of itself, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from relay.devstack import NatsServer, ValkeyServer
from tests.integration.scheduling import configuration


@contextmanager
def process(config: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "RELAY_CONFIG": str(config),
    }
    command = [sys.executable, "-m", "scheduler", *arguments]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=config.parent
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def test_help_and_list_say_what_it_does(tmp_path: Path) -> None:
    config = configuration(tmp_path, database_url="postgresql://127.0.0.1:9/sea", namespace="t")
    with process(config, "--help") as running:
        said = " ".join(running.communicate(timeout=200)[0].split())
        assert "Enqueues the fleet's jobs: publish, pull, sweep. Sends alerts." in said
        assert running.returncode == 0
    with process(config, "--list") as running:
        lines = running.communicate(timeout=200)[0].splitlines()
        assert running.returncode == 0
    assert dict(line.split(maxsplit=1) for line in lines) == {
        "publish:sea": "every 3600 s",
        "deliver_tasks:sea": "every 0.25 s",
        "sweep_tasks:sea": "every 2 s",
        "alerts:sea": "every 3 s",
        "conditions:sea": "every 15 s",
        "history:sea": "every 5 s",
        "pull:sea": "every 0.5 s",
        "reconcile_stream:sea": "every 30 s",
        "prune:sea": "every 3600 s",
        "look_after:sea": "every 3 s",
        "resend:sea": "every 2 s",
        "mend:sea": "every 5 s",
    }


def test_the_page_has_every_job_that_is_listed(tmp_path: Path) -> None:
    """Those of a configuration that has all of them."""
    config = configuration(tmp_path, database_url="postgresql://127.0.0.1:9/sea", namespace="t")
    everything = f"""
        [contexts.sea.archive]
        after = "90d"
        directory = "{tmp_path}"
        [contexts.sea.backpressure]
        above = 10
        [metrics]
        scheduler = 9464
    """
    config.write_text(config.read_text() + everything)
    with process(config, "--list") as running:
        listed = {line.partition(":")[0] for line in running.communicate(timeout=200)[0].splitlines()}
    page = (Path(__file__).parents[2] / "docs/how-to/scheduling.md").read_text()
    # Cron jobs are listed by their names, so the duty that opens their runs is not.
    assert {*re.findall(r"^\| `(\w+):CONTEXT` \|", page, re.MULTILINE)} == listed | {"crons"}


def test_a_wrong_configuration_is_named_and_nothing_starts(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text("[contexts.sea]\nshards = 2\n")
    with process(config) as running:
        output = running.communicate(timeout=200)[0]
        assert running.returncode == 1
    assert "shards" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("servers", ["up", "away"])
def test_a_signal_ends_it_with_0(
    tmp_path: Path,
    database_url: str,
    valkey: ValkeyServer,
    nats_server: NatsServer,
    number: signal.Signals,
    servers: str,
) -> None:
    away = {"database_url": "postgresql://127.0.0.1:9/sea"}
    up = {"database_url": database_url, "redis_url": valkey.url, "nats_url": nats_server.url}
    config = configuration(tmp_path, namespace=f"t{uuid4().hex}", poll="50ms", **(up if servers == "up" else away))
    with process(config) as running:
        assert running.stdout is not None
        assert any("scheduler started" in line for line in running.stdout)
        running.send_signal(number)
        output = running.communicate(timeout=200)[0]
        assert running.returncode == 0, output
    assert "Traceback" not in output
