"""Good events in raw SQL, as programs in any language write them: ordinary, large, and ahead of the clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import psycopg

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
