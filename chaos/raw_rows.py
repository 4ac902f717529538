"""Rows of the outbox in raw SQL, as any program writes them: ordinary, large, ahead of the clock, and bad."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import sql

from chaos.history import Produced

#: Sizes of payloads as jsonb writes them, in bytes: below the broker's limit of 1 MB.
SMALLEST: Final = 100_000
LARGEST: Final = 900_000
_ITEM: Final = '{"n": 12345678}'
_INSERT: Final = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
VALUES (%s, 'case', %s, %s, %s::jsonb)
"""
_INSERT_AHEAD: Final = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, partition_key, occurred_at)
VALUES (%s, 'case', %s, %s, %s::jsonb, '', now() + interval '5 minutes')
"""
_DEEP: Final = "[" * 1_500 + "]" * 1_500

#: Rows that can never be published: columns that differ from a good row's. The database takes all of them, because
#: they come past the checks of `relay.Outbox`.
BAD: Final[tuple[dict[str, str | int], ...]] = (
    {"event_type": "bad name"},
    {"event_type": "x" * 5_000},
    {"event_type": "http.*"},
    {"event_type": 'bad"name', "topic": "nowhere.at.all"},
    {"event_version": 0},
    {"topic": "shop.event." + "x" * 5_000},
    {"topic": ""},
    {"topic": "shop.event.>"},
    {"topic": "a b\r\nPUB c 0"},
    {"payload": _DEEP},
    {"payload": '"' + "x" * 1_100_000 + '"'},
    {"payload": '{"n": 9223372036854775808}'},
    {"payload": "[1e400]"},
    {"headers": '{"Nats-Rollup": "all"}'},
    {"headers": '{"nats-msg-id": "1"}'},
    {"headers": '{"A": "1\\r\\nNats-Rollup: all"}'},
    {"headers": '{"A": 1}'},
    {"headers": f'{{"A": {_DEEP}}}'},
    {"topic": "sea.event.http.v1"},
    {"topic": "shop.dlq.x"},
    {"payload": "[1e131071, 1e131071]"},
)


def large(key: str, chance: Random) -> str:
    """A payload of many small objects, as lists of things come."""
    count = chance.randint(SMALLEST, LARGEST) // (len(_ITEM) + len(", "))
    return f'{{"key": {json.dumps(key)}, "items": [{", ".join([_ITEM] * count)}]}}'


def insert(connection: psycopg.Connection[Any], event: Produced, payload: str) -> None:
    """Insert a good event as any program may."""
    connection.execute(_INSERT, [event.id, event.key, event.source.value, payload])


def insert_ahead(connection: psycopg.Connection[Any], events: Sequence[Produced]) -> None:
    """Insert events with a time five minutes ahead, as they exist after the database's clock was set back.

    No clock is changed. Instead the trigger that forbids such rows is disabled during the insert.
    """
    connection.execute("SET LOCAL session_replication_role = replica")
    for event in events:
        payload = json.dumps({"key": event.key})
        connection.execute(_INSERT_AHEAD, [event.id, event.key, event.source.value, payload])
    connection.execute("SET LOCAL session_replication_role = origin")


def insert_bad(connection: psycopg.Connection[Any], id: UUID, key: str, source: str, number: int) -> None:
    """Insert the row that ``BAD[number % len(BAD)]`` describes, naming no partition key, as in any language."""
    row: dict[str, Any] = {
        "id": id,
        "aggregate_type": "case",
        "aggregate_id": key,
        "event_type": source,
        "payload": "{}",
        **BAD[number % len(BAD)],
    }
    statement = sql.SQL("INSERT INTO outbox_events ({}) VALUES ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, row)), sql.SQL(", ").join(map(sql.Placeholder, row))
    )
    connection.execute(statement, row)
