"""`relay fleet` and `relay fleet status` on the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
import redis
from typer.testing import CliRunner, Result

from relay.adapters.dramatiq.gates import Gates
from relay.adapters.members import Members
from relay.cli import create_app
from relay.devstack import ValkeyServer
from relay.domain.errors import InvalidRequest, QueueUnreachable
from relay.domain.members import LOST_AFTER_S, Member, State
from tests.integration.test_members import SUPERVISOR, WORKER

CONFIG = '[contexts.sea]\ndatabase_url = "postgresql://nobody@127.0.0.1:9/sea"\n'


def relay(*words: str) -> Result:
    return CliRunner().invoke(create_app(["fleet"]), ["fleet", *words])


@pytest.fixture
def namespace(tmp_path: Path, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"test-{uuid4().hex}"
    (tmp_path / "relay.toml").write_text(CONFIG)
    monkeypatch.setenv("RELAY_CONFIG", str(tmp_path / "relay.toml"))
    monkeypatch.setenv("REDIS_URL", valkey.url)
    monkeypatch.setenv("RELAY_REDIS_NAMESPACE", name)
    return name


@pytest.fixture
def three(namespace: str, valkey: ValkeyServer) -> str:
    """A supervisor, its worker, and a worker that is lost."""
    beat(valkey, namespace, SUPERVISOR, WORKER, replace(WORKER, id="three", pid=8))
    silence(valkey, namespace, "three", LOST_AFTER_S + 30)
    return namespace


def beat(valkey: ValkeyServer, namespace: str, *members: Member) -> None:
    async def run() -> None:
        gates = Gates(valkey.url, namespace)
        for member in members:
            await Members(gates.client, namespace).beat(member)
        await gates.aclose()

    asyncio.run(run())


def silence(valkey: ValkeyServer, namespace: str, id: str, seconds: float) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.zincrby(f"{namespace}:members:beats", -1000 * seconds, id)


def test_every_member_has_a_line(three: str) -> None:
    lines = relay("status").stdout.splitlines()
    assert [line.split()[:4] for line in lines[:4]] == [
        ["host", "pid", "kind", "state"],
        ["a", "5", "fleet", "ending"],
        ["b", "7", "worker", "working"],
        ["b", "8", "worker", "lost"],
    ]
    assert lines[1].rstrip().endswith("2/3   2 to 10 workers, 1 crashed")
    assert lines[2].split()[-5:] == ["3/8", "sea/from_vibespro", "3,", "2", "wait"]
    assert lines[4:6] == ["a 5: little is due", "release 1.2.3"]
    assert lines[6].startswith("what runs in sea is not known: ")
    assert len(lines) == 7


def test_a_terminal_of_80_columns_never_cuts_the_name_of_a_host(
    namespace: str, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of pods differ anywhere, and an error of a driver may have several lines."""
    crew = replace(SUPERVISOR.crew, why="the load is not known:\nthe connection was refused")  # type: ignore[type-var]
    pod = replace(WORKER, host="jetrelay-worker-all-7d9c6b5f4d-x2v8p", pid=4194304, up_seconds=190_000)
    beat(valkey, namespace, replace(SUPERVISOR, crew=crew), pod)
    silence(valkey, namespace, pod.id, 411)
    monkeypatch.setattr("relay.cli.tables.width_of_output", lambda: 80)
    shown = relay("status").stdout
    assert [line for line in shown.splitlines() if line.startswith("a 5: the load ")]
    assert "\nthe connection" not in shown
    words = shown.split()
    for word in (pod.host, "4194304", "worker", "lost", "3/8", "sea/from_vibespro"):
        assert word in words
    assert "lost 6.9 min" in shown
    assert "up: 2.2 d" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_scripts_get_all_that_is_known(three: str) -> None:
    supervisor, worker, lost = json.loads(relay("status", "--json").stdout)
    assert supervisor["crew"]["wanted"] == 3
    assert worker["usage"] == {"threads": 8, "busy": 3, "waiting": 2, "doing": {"sea/from_vibespro": 3}}
    assert (worker["state"], worker["version"], worker["up_seconds"]) == ("working", "1.2.3", 12.5)
    assert (lost["state"], lost["silent_seconds"] > LOST_AFTER_S) == (State.LOST.value, True)


def test_without_members_it_says_so(namespace: str) -> None:
    done = relay("status")
    assert done.exit_code == 0
    assert done.stdout.startswith("no heartbeat of a worker or supervisor for ten minutes\n")
    assert json.loads(relay("status", "--json").stdout) == []


def test_without_redis_it_is_an_error(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    done = relay("status")
    assert done.exit_code == 1
    assert isinstance(done.exception, QueueUnreachable)


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--min", "0"], "--min"),
        (["--min", "3", "--max", "2"], "--max"),
        (["--max", "0"], "--max"),
        (["--threads", "0"], "--threads"),
        (["--drain", "0"], "--drain"),
        (["--every", "0"], "--every"),
        (["--every", "nan"], "--every"),
        (["--age", "-1"], "--age"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name_before_anything_starts(words: list[str], field: str) -> None:
    done = relay(*words)
    assert isinstance(done.exception, InvalidRequest)
    assert done.exception.field == field
