"""`relay outbox publish ID`: CMD-050, typed by an operator."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from relay import Event, Outbox
from relay.cli import main
from relay.devstack import NatsServer, ValkeyServer
from tests.integration.publishing import query

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def context(
    database_url: str,
    nats_server: NatsServer,
    valkey: ValkeyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    name = f"pub{database_url.rpartition('_')[2]}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NATS_URL", nats_server.url)
    monkeypatch.setenv("REDIS_URL", valkey.url)
    (tmp_path / "relay.toml").write_text(
        f"""\
[contexts.{name}]
database_url = "{database_url}"
[contexts.{name}.stream]
max_bytes = "10MB"
[contexts.{name}.dlq]
max_bytes = "10MB"
"""
    )
    return name


@pytest.fixture
def cli(context: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["relay", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, printed.out, printed.err

    assert run("streams", "ensure")[0] == 0
    return run


def written(context: str, database_url: str, *keys: str) -> list[str]:
    with psycopg.connect(database_url) as connection:
        events = [Event(event_type="made", aggregate_type="a", aggregate_id=key, payload={}) for key in keys]
        return [str(id) for id in Outbox(context).add_many(connection, events)]


def test_an_event_is_published_now_once_and_audited(cli: Cli, context: str, database_url: str) -> None:
    first, second = written(context, database_url, "1", "2")
    status, output, _ = cli("outbox", "publish", second, "--json", "--actor", "ann", "--note", "urgent")
    answer = json.loads(output)
    assert (status, answer["id"], answer["seq"], answer["duplicate"]) == (0, second, 1, False)
    assert query(database_url, "SELECT id::text AS id FROM outbox_events WHERE published_at IS NULL") == [
        {"id": first}
    ]
    assert query(database_url, "SELECT actor, action, ids, note FROM audit_log") == [
        {"actor": "ann", "action": "outbox.publish", "ids": [second], "note": "urgent"}
    ]
    status, _, error = cli("outbox", "publish", second)
    assert (status, "NOT_PUBLISHABLE" in error, "replay" in error) == (1, True, True)


def test_order_per_key_holds_and_the_earlier_event_is_named(cli: Cli, context: str, database_url: str) -> None:
    first, second = written(context, database_url, "1", "1")
    status, _, error = cli("outbox", "publish", second)
    assert (status, "NOT_PUBLISHABLE" in error, first in error) == (1, True, True)
    for id in (first, second):
        status, output, _ = cli("outbox", "publish", id)
        assert status == 0
        assert max(map(len, output.splitlines())) <= 80


@pytest.mark.parametrize("state", ["dead_at = now()", "available_at = now() + interval '1 hour'"])
def test_a_dead_event_and_one_in_its_back_off_are_published(
    cli: Cli, context: str, database_url: str, state: str
) -> None:
    [id] = written(context, database_url, "1")
    query(database_url, f"UPDATE outbox_events SET publish_attempts = 1, publish_error = 'x', {state}")
    assert cli("outbox", "publish", id)[0] == 0
    [row] = query(
        database_url, "SELECT dead_at, publish_error, published_at IS NOT NULL AS done FROM outbox_events"
    )
    assert row == {"dead_at": None, "publish_error": None, "done": True}


def test_an_unknown_event_and_a_broker_that_is_away(
    cli: Cli, context: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [id] = written(context, database_url, "1")
    assert cli("outbox", "publish", str(uuid4()))[0] == 1
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    status, _, error = cli("outbox", "publish", id)
    assert (status, "BROKER_UNREACHABLE" in error) == (1, True)
    [row] = query(database_url, "SELECT publish_attempts FROM outbox_events")
    assert row["publish_attempts"] == 0


def test_a_worker_that_has_its_lane_is_waited_for_and_not_for_ever(
    cli: Cli, context: str, database_url: str
) -> None:
    [id] = written(context, database_url, "1")
    with psycopg.connect(database_url) as worker:
        worker.execute(
            "SELECT pg_advisory_xact_lock(relay_publisher_locks(), relay_lane(partition_key)) FROM outbox_events"
        )
        status, _, error = cli("outbox", "publish", id)
        assert (status, "NOT_PUBLISHABLE" in error) == (1, True)
    assert cli("outbox", "publish", id)[0] == 0
