"""`relay reconcile` as an operator types it, and what the scheduler sends."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from relay import Event, Outbox
from relay.adapters.dramatiq.gates import QueueEntry
from relay.bootstrap import Application
from relay.cli import main
from relay.devstack import NatsServer, ValkeyServer
from relay.domain.ordering import Shard
from relay.settings import load_settings
from scheduler.ticks import ticks
from tests.integration.publishing import query

Cli = Callable[..., tuple[int, str, str]]
EVENT = Event(event_type="vibe_created", aggregate_type="vibe", aggregate_id="1", payload={})
_PUBLISHED = "SELECT count(*) AS n FROM outbox_events WHERE published_at IS NOT NULL"


@pytest.fixture
def context(
    database_url: str,
    nats_server: NatsServer,
    valkey: ValkeyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A context that consumes its own events, with three of them published; answer its name."""
    name = f"rec{database_url.rpartition('_')[2]}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NATS_URL", nats_server.url)
    monkeypatch.setenv("REDIS_URL", valkey.url)
    monkeypatch.setenv("RELAY_REDIS_NAMESPACE", name)
    (tmp_path / "relay.toml").write_text(
        f"""\
[contexts.{name}]
database_url = "{database_url}"
[contexts.{name}.stream]
max_bytes = "10MB"
[contexts.{name}.dlq]
max_bytes = "10MB"
[contexts.{name}.subscriptions.own]
stream = "{name.upper()}_EVENTS"
filter_subject = "{name}.event.>"
handler = "http://127.0.0.1:8000/handle"
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
    with_application(context, lambda app: publish(app, context))
    return run


def with_application(context: str, work: Callable[[Application], Any]) -> Any:
    async def run() -> Any:
        application = Application(load_settings())
        await application.start()
        try:
            return await work(application)
        finally:
            await application.stop()

    return asyncio.run(run())


async def publish(application: Application, context: str) -> None:
    parts = application.context(context)
    with psycopg.connect(parts.settings.database_url.get_secret_value()) as connection:
        Outbox(context).add_many(connection, [EVENT] * 3)
    assert await parts.publish.drain(Shard(0, 1)) == 3


async def delete(application: Application, context: str) -> None:
    client = await application.nats.client()
    await client.jetstream().delete_msg(f"{context.upper()}_EVENTS", 2)


async def acknowledge(application: Application, context: str) -> None:
    """As a consumer whose inbox rows a failover took away."""
    consumer = application.consumer(context, "own")
    deliveries = []
    while len(deliveries) < 2:
        deliveries += await consumer.fetch(10, timedelta(seconds=1))
    await consumer.ack([delivery.reply for delivery in deliveries])
    await consumer.finish()


def test_where_all_is_well_the_status_is_zero(cli: Cli, context: str) -> None:
    status, output, _ = cli("reconcile", "--json")
    report = json.loads(output)
    assert (status, report["repair"]) == (0, False)
    [stream], [inbox] = report["streams"], report["inboxes"]
    assert (stream["context"], stream["stream"], stream["checked"]) == (context, f"{context.upper()}_EVENTS", 3)
    assert (stream["tail"], stream["middle"]) == ({"count": 0, "ids": []},) * 2
    assert (inbox["subscription"], inbox["checked"], inbox["missing"]) == ("own", 0, [])
    assert cli("reconcile")[0] == 0


def test_a_loss_is_status_one_until_it_is_repaired(cli: Cli, context: str, database_url: str) -> None:
    with_application(context, lambda app: delete(app, context))
    status, output, _ = cli("reconcile", "--context", context)
    assert (status, "mend with --repair" in output) == (1, True)
    assert query(database_url, _PUBLISHED)[0]["n"] == 3
    status, output, _ = cli("reconcile", "--repair", "--json")
    [stream] = json.loads(output)["streams"]
    assert (status, stream["middle"]["count"], stream["repaired"]) == (0, 1, True)
    assert query(database_url, _PUBLISHED)[0]["n"] == 2
    assert cli("reconcile")[0] == 0


def set_back(database_url: str) -> list[str]:
    """The database as it was before it wrote its last two events."""
    rows = query(
        database_url,
        "DELETE FROM outbox_events WHERE seq > 1 RETURNING id::text AS id, seq",
    )
    return [row["id"] for row in sorted(rows, key=lambda row: row["seq"])]


def test_a_database_that_was_set_back_is_an_error_until_its_events_are_adopted(
    cli: Cli, context: str, database_url: str
) -> None:
    assert "PRODUCER_RESTORED" not in codes(cli)
    lost = set_back(database_url)
    assert "PRODUCER_RESTORED" in codes(cli)
    status, output, _ = cli("reconcile", "--producer", "--json", "--limit", "1")
    [stream] = json.loads(output)["streams"]
    assert (status, [it["id"] for it in stream["orphans"]], stream["next_after"]) == (1, lost[:1], 2)
    chosen = "--context", context, "--stream", stream["stream"]
    status, output, _ = cli("reconcile", "--producer", *chosen, "--after", "2", "--json")
    [stream] = json.loads(output)["streams"]
    assert (status, [it["id"] for it in stream["orphans"]], stream["next_after"]) == (1, lost[1:], None)
    status, output, _ = cli("reconcile", "--producer")
    assert (status, all(id in output for id in lost)) == (1, True)
    assert max(map(len, output.splitlines())) <= 80
    status, output, _ = cli("reconcile", "--producer", "--adopt", "--dry-run", "--json")
    assert (status, json.loads(output)["streams"][0]["ids"]) == (0, lost)
    assert query(database_url, _PUBLISHED)[0]["n"] == 1
    assert cli("reconcile", "--producer", "--adopt", "--yes", "--actor", "ann", "--note", "monday")[0] == 0
    assert query(database_url, _PUBLISHED)[0]["n"] == 3
    assert query(database_url, "SELECT actor, note FROM audit_log") == [{"actor": "ann", "note": "monday"}]
    assert cli("reconcile", "--producer")[0] == 0
    assert "PRODUCER_RESTORED" not in codes(cli)
    assert cli("reconcile")[0] == 0


def codes(cli: Cli) -> set[str]:
    return {found["code"] for it in json.loads(cli("health", "--json")[1]) for found in it["findings"]}


def test_orphans_can_be_reported_to_the_consumers(cli: Cli, context: str, database_url: str) -> None:
    set_back(database_url)
    assert cli("reconcile", "--producer", "--report", "--yes", "--context", context)[0] == 0
    [told] = query(database_url, "SELECT payload FROM outbox_events WHERE event_type = 'events_orphaned'")
    assert len(told["payload"]["events"]) == 2
    assert cli("reconcile", "--producer")[0] == 0
    assert "PRODUCER_RESTORED" not in codes(cli)


@pytest.mark.parametrize(
    "options",
    [
        ("--adopt",),
        ("--after", "3"),
        ("--producer", "--adopt", "--report"),
        ("--producer", "--after", "3"),
    ],
)
def test_options_that_do_not_go_together_are_refused(cli: Cli, options: tuple[str, ...]) -> None:
    status, _, error = cli("reconcile", *options)
    assert (status, "error INVALID_REQUEST" in error) == (1, True)


def test_a_sequence_behind_is_an_error_until_repaired(cli: Cli, context: str, database_url: str) -> None:
    query(database_url, "ALTER SEQUENCE outbox_events_seq_seq RESTART")
    assert "SEQUENCE_BEHIND" in codes(cli)
    assert cli("db", "repair")[0] == 0
    assert "SEQUENCE_BEHIND" not in codes(cli)
    status, output, _ = cli("db", "repair", "--json")
    assert (status, json.loads(output)) == (0, [{"context": context, "mended": []}])


def test_what_the_inbox_lacks_is_handed_to_the_fleet(cli: Cli, context: str, valkey: ValkeyServer) -> None:
    with_application(context, lambda app: delete(app, context))
    with_application(context, lambda app: acknowledge(app, context))
    status, output, _ = cli("reconcile", "--json")
    assert (status, json.loads(output)["inboxes"][0]["missing"]) == (1, [1, 3])
    assert queued(valkey, context) == []
    assert cli("reconcile", "--repair")[0] == 0
    [(actor, arguments)] = queued(valkey, context)
    assert (actor, arguments[:3]) == ("reconcile_inbox", [context, "own", None])


def queued(valkey: ValkeyServer, namespace: str, queue: str = "relay-upkeep") -> list[tuple[str, list[Any]]]:
    with redis.Redis.from_url(valkey.url) as client:
        messages = client.hvals(f"{namespace}:{queue}.msgs")
    return [(message["actor_name"], message["args"]) for message in map(json.loads, messages)]


def test_a_server_that_is_away_is_said_in_one_line(
    cli: Cli, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    status, _, error = cli("reconcile")
    assert (status, f"error BROKER_UNREACHABLE: context {context}:" in error) == (1, True)
    assert cli("reconcile", "--context", "nowhere")[0] == 1


def test_the_scheduler_audits_streams_every_half_minute(context: str) -> None:
    """Inboxes are a part of upkeep: tests/acceptance/test_lost_duties.py."""
    sent: list[tuple[Any, ...]] = []

    class Broker:
        def entry(self, message: Any) -> QueueEntry:
            sent.append((message.actor_name, *message.args[:-2]))
            return QueueEntry(f"{context}:audits", message.message_id, message.encode())

    async def tick(application: Application) -> None:
        table = [job for job in ticks(application, Broker(), context) if job.name.startswith("reconcile")]
        assert {job.every for job in table} == {timedelta(seconds=30)}
        for job in table:
            await job.tick()

    with_application(context, tick)
    assert sent == [("reconcile_stream", context)]
