"""Sections 6 to 9 and 11 to 13 of the MicroDAO outbox: its worker, from the insert by SQL to the stream."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats
import psycopg
import pytest
from typer.testing import CliRunner

from relay.adapters.postgres.migrations import upgrade
from relay.adapters.postgres.row_operations import PostgresOutboxOperations
from relay.cli import create_app
from relay.devstack import NatsServer, PostgresServer
from relay.domain.errors import BrokerUnreachable, DatabaseUnreachable
from relay.domain.facts import EventDied, PublishFailed
from relay.domain.operators import Operator
from relay.domain.retry import Backoff
from relay.domain.routing import Route
from relay.settings import load_settings
from relay.settings.model import PublishSettings
from tests.integration.microdao_support import INSERT, Dao, connect, laid
from tests.integration.publishing import ALL, Relay, query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

TOO_DEEP = '{"a":' * 101 + "1" + "}" * 101


@pytest.fixture
async def dao(relay: Relay) -> Dao:
    await relay.create_stream()
    return Dao(relay)


def publish(dao: Dao, **options: Any) -> Any:
    return dao.relay.command(envelope="raw", **options)


async def ids(dao: Dao) -> list[str]:
    return await dao.relay.ids()


# --- section 7: duplicates ---


async def test_section_7_the_message_id_is_the_id_and_a_repeat_is_stored_once(dao: Dao) -> None:
    """The worker dies between the publishing and the marking: the event is published twice and stored once."""

    async def die(_claim: object) -> None:
        raise KeyboardInterrupt

    dao.insert("evt_1", "7f2c1c9e-6e57-4d0c-9d36-5f3a0b1c2d3e")
    with pytest.raises(KeyboardInterrupt):
        await publish(dao, settled=die).drain(ALL)
    assert not any(row["processed"] for row in dao.rows())
    await dao.relay.drained(publish(dao))
    assert await ids(dao) == ["evt_1", "7f2c1c9e-6e57-4d0c-9d36-5f3a0b1c2d3e"]
    assert all(row["processed"] for row in dao.rows())


# --- section 8: retries ---


async def test_section_8_the_back_off_doubles_from_1_to_60_seconds_and_ends_after_x(dao: Dao) -> None:
    await dao.relay.update_stream(max_msg_size=1_000)
    dao.insert("evt_1", payload=json.dumps({"large": "x" * 2_000}))
    waits = []
    for _ in range(10):
        before = query(dao.relay.url, "SELECT clock_timestamp() AS now")[0]["now"]
        await publish(dao, max_attempts=10, backoff=Backoff()).drain(ALL)
        [row] = query(dao.relay.url, "SELECT available_at, dead_at, publish_attempts FROM outbox_events")
        if row["dead_at"] is None:
            waits.append((row["available_at"] - before).total_seconds())
            query(dao.relay.url, "UPDATE outbox_events SET available_at = now()")
    # Up to a fifth of a delay is left out by chance, and the attempt itself takes a moment.
    for wait, nominal in zip(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True):
        assert 0.8 * nominal <= wait <= nominal + 10
    [row] = dao.rows()
    assert not row["processed"]
    assert row["error"].startswith("unrecoverable: ")
    counts = [sum(isinstance(fact, kind) for fact in dao.relay.facts) for kind in (PublishFailed, EventDied)]
    assert counts == [9, 1]
    told = {fact.outbox_id for fact in dao.relay.facts if isinstance(fact, PublishFailed | EventDied)}
    assert told == {"evt_1"}
    await publish(dao).drain(ALL)
    assert query(dao.relay.url, "SELECT publish_attempts FROM outbox_events")[0]["publish_attempts"] == 10


def test_section_8_the_defaults_are_those_of_the_document() -> None:
    found = PublishSettings()
    assert (found.backoff_initial, found.backoff_max) == (timedelta(seconds=1), timedelta(seconds=60))


async def test_section_8_an_event_that_was_given_up_is_published_when_an_operator_says_so(dao: Dao) -> None:
    await dao.relay.update_stream(max_msg_size=1_000)
    dao.insert("evt_1", payload=json.dumps({"large": "x" * 2_000}))
    await publish(dao, max_attempts=1).drain(ALL)
    assert dao.row("evt_1")["error"].startswith("unrecoverable: ")
    await dao.relay.update_stream(max_msg_size=-1)
    [row] = query(dao.relay.url, "SELECT id FROM outbox_events")
    await publish(dao).publish(row["id"])
    shown = dao.row("evt_1")
    assert (shown["processed"], shown["error"]) == (True, None)


async def test_section_8_an_event_that_is_to_be_tried_again_is_not_called_unrecoverable(dao: Dao) -> None:
    dao.insert("evt_1", topic="two words")
    await publish(dao).drain(ALL)
    assert dao.row("evt_1")["error"].startswith("unrecoverable: ")
    outcome = await PostgresOutboxOperations(dao.relay.pool.connection).retry(["evt_1"], Operator("ann"))
    assert len(outcome.done) == 1
    assert (dao.row("evt_1")["processed"], dao.row("evt_1")["error"]) == (False, None)
    await publish(dao).drain(ALL)
    assert dao.row("evt_1")["error"].startswith("unrecoverable: ")


# --- section 9: batches ---


@pytest.mark.parametrize("size", [100, 200, 300])
async def test_section_9_a_batch_has_as_many_events_as_it_is_told(dao: Dao, size: int) -> None:
    sizes: list[int] = []

    async def count(claim: Any) -> None:
        sizes.append(len(claim.rows))

    with connect(dao.relay.url) as connection:
        connection.execute(
            b"INSERT INTO microdao.outbox_events (id, stream, partition_key, topic, payload)"
            b" SELECT 'evt_' || n, %s, n::text, %s, '{}' FROM generate_series(1, 650) AS n",
            (dao.stream, dao.topic()),
        )
    await dao.relay.drained(publish(dao, batch_size=size, claimed=count))
    assert max(sizes) == size
    assert sum(sizes) == 650


def test_section_9_the_default_is_within_what_the_document_advises() -> None:
    assert 100 <= PublishSettings().batch_size <= 300


# --- section 10: order ---


async def test_section_10_events_of_a_stream_and_key_reach_the_stream_in_their_order(dao: Dao) -> None:
    with connect(dao.relay.url) as connection:
        for n in range(60):
            key = None if n % 3 == 0 else f"team_{n % 3}"
            connection.execute(
                b"INSERT INTO microdao.outbox_events (id, stream, partition_key, topic, payload)"
                b" VALUES (%s, %s, %s, %s, '{}')",
                (f"evt_{n}", dao.stream, key, dao.topic()),
            )
    await dao.relay.drained(publish(dao, batch_size=7))
    sent = [int(id.removeprefix("evt_")) for id in await ids(dao)]
    assert sorted(sent) == list(range(60))
    for key in range(3):
        assert [n for n in sent if n % 3 == key] == list(range(key, 60, 3))


# --- section 11: streams ---


async def test_section_11_an_event_leaves_for_the_stream_that_its_row_names_and_for_no_other(dao: Dao) -> None:
    payouts, topic = f"{dao.stream}_PAYOUT", f"{dao.relay.context}.payout.generated"
    route = Route(topics=[f"{dao.relay.context}.payout.>"], stream=payouts)
    dao.insert("early", stream=payouts, topic=topic)
    await publish(dao, routes=[route]).drain(ALL)
    assert dao.row("early")["error"].startswith("STREAM_MISSING: ")
    await dao.relay.admin(lambda js: js.add_stream(name=payouts, subjects=[f"{dao.relay.context}.payout.>"]))
    dao.insert("run")
    dao.insert("astray", stream=dao.stream, topic=topic)
    query(dao.relay.url, "UPDATE outbox_events SET available_at = now() WHERE available_at IS NOT NULL")
    await publish(dao, routes=[route], max_attempts=1).drain(ALL)
    shown = {row["id"]: (row["processed"], row["error"]) for row in dao.rows()}
    assert shown["early"] == shown["run"] == (True, None)
    assert shown["astray"][0] is False
    assert shown["astray"][1].startswith("STREAM_MISMATCH: ")
    stored = query(dao.relay.url, "SELECT originals ->> 'id' AS id, published_stream AS at FROM outbox_events")
    assert {row["id"]: row["at"] for row in stored} == {"early": payouts, "run": dao.stream, "astray": None}


async def test_section_11_the_streams_are_made_as_they_are_declared(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"dao{uuid4().hex[:8]}"
    (tmp_path / "relay.toml").write_text(f"""
[contexts.{name}]
database_url = "postgresql://localhost/dao"
envelope = "raw"
microdao_schema = "microdao"
subject = "{name}.agent.run.{{name}}"
[[contexts.{name}.routes]]
topics = ["{name}.agent.run.>"]
stream = "{name}_AGENT_RUN"
[contexts.{name}.streams.{name}_AGENT_RUN]
subjects = ["{name}.agent.run.>"]
replicas = 3
[contexts.{name}.streams.{name}_RWA]
subjects = ["{name}.rwa.inventory.*"]
[contexts.{name}.dlq]
replicas = 1
""")
    monkeypatch.setenv("NATS_URL", nats_server.url)
    monkeypatch.chdir(tmp_path)
    settings = load_settings(tmp_path / "relay.toml")
    declared = {stream.name: stream for stream in settings.streams(name)}
    assert (declared[f"{name}_AGENT_RUN"].replicas, declared[f"{name}_RWA"].replicas) == (3, 1)
    routing = settings.contexts[name].routing
    assert routing.destination("x", 1, f"{name}.agent.run.started").stream == f"{name}_AGENT_RUN"
    monkeypatch.setenv(f"RELAY_CONTEXTS__{name.upper()}__STREAMS__{name.upper()}_AGENT_RUN__REPLICAS", "1")
    ensure = ["streams", "ensure", "--context", name]
    made = await asyncio.to_thread(CliRunner().invoke, create_app(), ensure)
    assert made.exit_code == 0, made.output
    client = await nats.connect(nats_server.url)
    info = await client.jetstream().stream_info(f"{name}_RWA")
    await client.close()
    assert (info.config.subjects, info.config.storage) == ([f"{name}.rwa.inventory.*"], "file")


# --- section 12: failures ---


async def test_section_12_1_another_worker_goes_on_where_one_crashed(dao: Dao) -> None:
    async def crash(_claim: object) -> None:
        raise KeyboardInterrupt

    dao.insert(*(f"evt_{n}" for n in range(5)))
    with pytest.raises(KeyboardInterrupt):
        await publish(dao, claimed=crash).drain(ALL)
    await dao.relay.drained(publish(dao))
    assert await ids(dao) == [f"evt_{n}" for n in range(5)]


async def test_section_12_2_without_the_database_nothing_leaves_and_later_everything_does(
    own_postgres: PostgresServer, nats_server: NatsServer
) -> None:
    url = own_postgres.create_database("dao")
    upgrade(url)
    async with Relay(url, nats_server.url) as relay:
        await relay.create_stream()
        dao = Dao(relay)
        dao.insert("evt_1")
        own_postgres.stop()
        with pytest.raises(DatabaseUnreachable):
            await publish(dao).drain(ALL)
        assert await ids(dao) == []
        own_postgres.start()
        await eventually("the database is back", dao.rows)
        await dao.relay.drained(publish(dao))
        assert await ids(dao) == ["evt_1"]


async def test_section_12_3_without_nats_no_attempt_is_spent_and_later_everything_leaves(
    database_url: str, own_nats: NatsServer
) -> None:
    async with Relay(database_url, own_nats.url) as relay:
        await relay.create_stream()
        dao = Dao(relay)
        dao.insert("evt_1")
        own_nats.stop()
        with pytest.raises(BrokerUnreachable):
            await publish(dao).drain(ALL)
        [row] = query(relay.url, "SELECT publish_attempts FROM outbox_events")
        assert row["publish_attempts"] == 0
        assert (dao.row("evt_1")["processed"], dao.row("evt_1")["error"]) == (False, None)
        own_nats.start()
        await dao.relay.drained(publish(dao))
        assert await ids(dao) == ["evt_1"]


@pytest.mark.parametrize(
    "columns",
    [
        {"payload": TOO_DEEP},
        {"payload": "123456789012345678901234567890"},
        {"topic": "payout generated"},
        {"topic": "payout.*"},
        {"id": "x" * 1_000},
        {"id": "two\nlines"},
        {"id": ""},
    ],
    ids=" ".join,
)
async def test_section_12_4_a_corrupted_event_is_marked_at_once_and_skipped(
    dao: Dao, columns: dict[str, str]
) -> None:
    dao.insert("before")
    bad = {"id": "bad", **columns}
    dao.insert(bad.pop("id"), **bad)
    dao.insert("after")
    await publish(dao).drain(ALL)
    assert await ids(dao) == ["before", "after"]
    [row] = [row for row in dao.rows() if not row["processed"]]
    assert row["error"].startswith("unrecoverable: ")


def test_section_12_4_what_is_no_json_does_not_enter(database_url: str) -> None:
    with connect(laid(database_url)) as connection, pytest.raises(psycopg.errors.InvalidTextRepresentation):
        connection.execute(INSERT, ("evt_1", "S", "a.b", "{not json"))


# --- section 13: guarantees ---


async def test_section_13_an_event_can_be_replayed(dao: Dao) -> None:
    dao.insert("evt_1")
    await dao.relay.drained(publish(dao))
    query(
        dao.relay.url,
        "UPDATE outbox_events SET generation = generation + 1, published_at = NULL, available_at = now()",
    )
    assert dao.row("evt_1")["processed"] is False
    await dao.relay.drained(publish(dao))
    assert await ids(dao) == ["evt_1", "evt_1.1"]
    assert dao.row("evt_1")["processed"] is True
