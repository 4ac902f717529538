"""The commands about configuration and topology, as a user types them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.cli import main
from relay.devstack import NatsServer
from relay.settings.urls import hide_url

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def name() -> str:
    return f"cli{uuid.uuid4().hex[:8]}"


@pytest.fixture
def cli(
    name: str,
    nats_server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Cli:
    """Run `relay …` beside a relay.toml with one context; answer status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NATS_URL", nats_server.url)
    (tmp_path / "relay.toml").write_text(
        f"""\
[contexts.{name}]
database_url = "postgresql://app:s3cret@db/{name}"
[contexts.{name}.stream]
max_bytes = "1MB"
[contexts.{name}.subscriptions.own]
stream = "{name.upper()}_EVENTS"
filter_subject = "{name}.event.>"
handler = "http://127.0.0.1:8000/handle"
"""
    )

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["relay", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        status = caught.value.code
        assert isinstance(status, int)
        return status, printed.out, printed.err

    return run


def test_streams_from_nothing_to_done(cli: Cli, name: str) -> None:
    stream, durable = f"{name.upper()}_EVENTS", f"{name.upper()}_EVENTS/{name}__own"
    status, out, _ = cli("streams", "diff")
    assert status == 1
    assert f"stream {stream}: missing" in out
    status, out, _ = cli("streams", "ensure")
    assert status == 0
    assert f"created stream {stream}\n" in out
    assert f"created consumer {durable}\n" in out
    assert cli("streams", "ensure") == (0, "Nothing to do.\n", "")
    assert cli("streams", "diff") == (0, "No differences.\n", "")
    status, out, _ = cli("streams", "show")
    assert status == 0
    assert f"{stream}: 0 messages" in out
    assert f"  {name}__own: 0 waiting, 0 unacknowledged, 0 redelivered" in out


def test_drift_ends_diff_with_status_1(cli: Cli, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("streams", "ensure")
    monkeypatch.setenv(f"RELAY_CONTEXTS__{name.upper()}__STREAM__MAX_AGE", "1d")
    status, out, _ = cli("streams", "diff")
    assert (status, out) == (1, f"stream {name.upper()}_EVENTS: max_age is 7d, should be 1d\n")
    status, out, _ = cli("streams", "diff", "--context", name, "--json")
    assert status == 1
    assert json.loads(out) == [
        {
            "kind": "stream",
            "name": f"{name.upper()}_EVENTS",
            "field": "max_age",
            "expected": "1d",
            "actual": "7d",
            "changeable": True,
        }
    ]
    assert cli("streams", "ensure")[1] == f"updated stream {name.upper()}_EVENTS: max_age\n"


def test_what_cannot_be_changed_ends_ensure_with_status_1(
    cli: Cli, name: str, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = (
        "import asyncio, nats, sys\n"
        "async def main():\n"
        "    client = await nats.connect(sys.argv[1])\n"
        "    await client.jetstream().add_stream(name=sys.argv[2], subjects=[sys.argv[3]], storage='memory')\n"
        "    await client.close()\n"
        "asyncio.run(main())\n"
    )
    arguments = [nats_server.url, f"{name.upper()}_EVENTS", f"{name}.event.>"]
    subprocess.run([sys.executable, "-c", make, *arguments], check=True, timeout=200)
    status, out, _ = cli("streams", "ensure")
    assert status == 1
    assert f"refused stream {name.upper()}_EVENTS: storage (" in out


def test_an_unknown_context(cli: Cli) -> None:
    status, out, err = cli("streams", "show", "--context", "nope")
    assert (status, out) == (1, "")
    assert re.match("error UNKNOWN_CONTEXT: .*'nope' .*known: cli", err)


def test_a_broker_that_is_not_there_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://user:pa55@127.0.0.1:1")
    status, out, err = cli("streams", "diff")
    assert (status, out) == (1, "")
    assert err.startswith("error BROKER_UNREACHABLE: ")
    assert err.count("\n") == 1
    assert "pa55" not in err


def test_a_bad_configuration_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_LOG_FORMT", "json")
    for arguments in (["config"], ["streams", "diff"]):
        status, _, err = cli(*arguments)
        assert status == 1
        assert err.startswith("error INVALID_CONFIG: env RELAY_LOG_FORMT: log_formt: ")
        assert err.count("\n") == 1


def test_config_shows_values_with_their_sources(cli: Cli, name: str, nats_server: NatsServer) -> None:
    status, out, _ = cli("config")
    assert status == 0
    rows = [line.split(None, 1) for line in out.splitlines()]
    shown = {key: " ".join(rest.split()) for key, rest in rows}
    assert shown["nats_url"] == f"{hide_url(nats_server.url)} env NATS_URL"
    assert shown[f"contexts.{name}.database_url"] == f"postgresql://***@db/{name} relay.toml:2"
    assert shown[f"contexts.{name}.publish.shards"] == "2 default"
    assert "s3cret" not in out


def test_config_as_json(cli: Cli, name: str) -> None:
    status, out, _ = cli("config", "--json")
    assert status == 0
    assert {"key": f"contexts.{name}.stream.max_bytes", "value": "1MB", "source": "relay.toml:4"} in json.loads(
        out
    )
    assert "s3cret" not in out


def test_version_needs_no_configuration(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_CONFIG", "/nowhere/relay.toml")
    status, out, _ = cli("version")
    assert status == 0
    assert out.strip()


def test_the_commands_are_all_mounted(cli: Cli) -> None:
    _, out, _ = cli("--help")
    for command in ("backlog", "config", "db", "streams", "version"):
        assert f" {command} " in out
