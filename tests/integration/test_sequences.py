"""Sequences that step back: order per key holds, no insert is stopped for ever, and upkeep sets them forward."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.errors import UniqueViolation

from relay.adapters.postgres.sequences import mend_sequences
from relay.devstack import NatsServer
from relay.domain.facts import Fact, SequencesMended
from tests.integration.publishing import Relay, event, outbox_rows, query

pytestmark = pytest.mark.anyio

RESTART = "ALTER SEQUENCE outbox_events_seq_seq RESTART"
RAW = "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) {}"
ONE = RAW.format("VALUES (gen_random_uuid(), 'vibe', 'v1', 'vibe_created', '{}')")
MANY = RAW.format(
    "SELECT gen_random_uuid(), 'vibe', 'v' || mod(i, 3), 'vibe_created', '{}' FROM generate_series(1, 9) AS i"
)
_LETTER = "(message_id, subject, class, reason) VALUES (gen_random_uuid(), 's', 'poison', 'r')"
_REPLAY = "(subscription, until, again, rate, actor, state) VALUES ('s', now(), false, 1, 'ann', 'finished')"
BEHIND = "SELECT sequence::text AS name FROM relay_sequences_behind()"


def add_one_by_one(relay: Relay) -> None:
    for _ in range(5):
        relay.add(event())


def add_many_keys(relay: Relay) -> None:
    """More than a transaction locks one by one."""
    relay.add(*(event(f"v{number}") for number in range(100)))


def keys_in_order(url: str, old: set[Any]) -> None:
    """Within each key all old events stand before all new ones."""
    for key in {row["partition_key"] for row in outbox_rows(url)}:
        which = [row["id"] in old for row in outbox_rows(url) if row["partition_key"] == key]
        assert which == sorted(which, reverse=True), key


@pytest.mark.parametrize("state", ["ready", "failed", "both"])
@pytest.mark.parametrize("way", ["add", "many keys", "raw", "raw, many rows"])
@pytest.mark.parametrize("to", [None, 12], ids=["to the beginning", "a little"])
async def test_new_events_never_overtake_those_of_their_key(
    database_url: str, nats_server: NatsServer, to: int | None, way: str, state: str
) -> None:
    async with Relay(database_url, nats_server.url) as relay:
        old = {id for number in range(20) for id in relay.add(event(f"v{number % 3}"))}
        if state != "ready":
            failed = "true" if state == "failed" else "aggregate_id = 'v1'"
            query(
                relay.url,
                "UPDATE outbox_events SET publish_attempts = 1, available_at = now() + interval '1 hour'"
                f" WHERE {failed}",
            )
        query(relay.url, RESTART if to is None else f"{RESTART} WITH {to}")
        match way:
            case "add":
                add_one_by_one(relay)
            case "many keys":
                add_many_keys(relay)
            case "raw":
                query(relay.url, ONE)
            case _:
                query(relay.url, MANY)
        keys_in_order(relay.url, old)
        assert query(relay.url, BEHIND) == []


async def test_a_sequence_that_is_right_is_left_alone(relay: Relay) -> None:
    relay.add(event(), event("v2"))
    query(relay.url, ONE)
    query(relay.url, MANY)
    assert max(row["seq"] for row in outbox_rows(relay.url)) < 100


@pytest.mark.parametrize(
    ("sequence", "insert"),
    [
        ("audit_log_id_seq", "INSERT INTO audit_log (actor, action, ids) VALUES ('ann', 'x', '{}')"),
        (
            "dead_letters_id_seq",
            f"INSERT INTO dead_letters {_LETTER}",
        ),
        (
            "scheduled_runs_id_seq",
            "INSERT INTO scheduled_runs VALUES (DEFAULT, 'job', clock_timestamp(), DEFAULT, gen_random_uuid())",
        ),
        (
            "inbox_replays_id_seq",
            f"INSERT INTO inbox_replays {_REPLAY}",
        ),
        (
            "task_outbox_seq_seq",
            "INSERT INTO task_outbox (id, type, payload) VALUES (gen_random_uuid(), 't', '{}')",
        ),
        ("outbox_events_seq_seq", ONE.replace("'v1'", "gen_random_uuid()::text")),
    ],
)
async def test_upkeep_sets_each_forward_and_says_so(relay: Relay, sequence: str, insert: str) -> None:
    for _ in range(5):
        query(relay.url, insert)
    query(relay.url, "UPDATE outbox_events SET published_at = now()")
    query(relay.url, f"ALTER SEQUENCE {sequence} RESTART")
    assert query(relay.url, BEHIND) == [{"name": sequence}]
    facts: list[Fact] = []
    assert await mend_sequences("sea", relay.pool.connection, facts.append) == [sequence]
    assert facts == [SequencesMended(context="sea", names=[sequence])]
    query(relay.url, insert)
    assert query(relay.url, BEHIND) == []
    assert await mend_sequences("sea", relay.pool.connection, facts.append) == []


async def test_every_numbered_column_is_looked_after(relay: Relay) -> None:
    numbered = query(
        relay.url,
        "SELECT pg_get_serial_sequence(c.relname, a.attname) AS name FROM pg_attribute AS a"
        " JOIN pg_class AS c ON c.oid = a.attrelid AND c.relnamespace = 'public'::regnamespace"
        " WHERE a.attidentity <> ''",
    )
    [source] = query(relay.url, "SELECT prosrc AS text FROM pg_proc WHERE proname = 'relay_sequences_behind'")
    missing = [it["name"] for it in numbered if f"'{it['name'].removeprefix('public.')}'" not in source["text"]]
    assert missing == []


async def test_a_number_at_the_end_of_all_numbers_does_not_use_them_up(relay: Relay) -> None:
    query(relay.url, ONE)
    query(relay.url, "UPDATE outbox_events SET seq = 9223372036854775807")
    relay.add(event())
    assert min(row["seq"] for row in outbox_rows(relay.url)) < 100


async def test_a_duplicate_number_stops_no_insert(relay: Relay) -> None:
    insert = "INSERT INTO audit_log (actor, action, ids) VALUES ('ann', 'x', '{}')"
    query(relay.url, insert)
    query(relay.url, "ALTER SEQUENCE audit_log_id_seq RESTART")
    with pytest.raises(UniqueViolation):
        query(relay.url, insert)
    query(relay.url, "ALTER SEQUENCE audit_log_id_seq RESTART")
    await mend_sequences("sea", relay.pool.connection, lambda _: None)
    query(relay.url, insert)


async def test_sessions_that_mend_at_once_never_set_it_back(relay: Relay) -> None:
    old = {id for _ in range(20) for id in relay.add(event())}
    query(relay.url, RESTART)
    with psycopg.connect(relay.url) as one, psycopg.connect(relay.url) as two:
        relay.outbox.add(one, event("v2"))
        relay.outbox.add(two, event())
        relay.outbox.add(one, event("v3"))
        two.commit()
        one.commit()
    relay.add(event())
    keys_in_order(relay.url, old)
