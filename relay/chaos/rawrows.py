"""Good events that only raw SQL can write: large ones, and ones that are ahead of the database's clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import psycopg
from psycopg import sql

from relay.chaos.history import Produced

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
#: The rule as PostgreSQL holds it, if it is a CHECK of the table.
_RULE: Final = """
SELECT pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = 'outbox_events'::regclass AND conname = 'chk_occurred_not_future' AND contype = 'c'
"""


def large(key: str, chance: Random) -> str:
    """A payload of many small objects, as lists of things come."""
    count = chance.randint(SMALLEST, LARGEST) // (len(_ITEM) + len(", "))
    return f'{{"key": {json.dumps(key)}, "items": [{", ".join([_ITEM] * count)}]}}'


def insert(connection: psycopg.Connection[Any], event: Produced, payload: str) -> None:
    """Insert a good event as any program may."""
    connection.execute(_INSERT, [event.id, event.key, event.source.value, payload])


def insert_ahead(connection: psycopg.Connection[Any], events: Sequence[Produced]) -> None:
    """Insert events of five minutes from now, as they stand there once the database's clock is set back.

    No clock is set. Instead the rule that forbids such rows is not there while they are inserted: triggers sleep,
    and the constraint, where it is one, is put back without a look at the rows that are there.
    """
    connection.execute("SET LOCAL session_replication_role = replica")
    connection.execute("SET LOCAL lock_timeout = '3s'")
    rule = connection.execute(_RULE).fetchone()
    if rule is not None:
        connection.execute("ALTER TABLE outbox_events DROP CONSTRAINT chk_occurred_not_future")
    for event in events:
        payload = json.dumps({"key": event.key})
        connection.execute(_INSERT_AHEAD, [event.id, event.key, event.source.value, payload])
    if rule is not None:
        put_back = f"ALTER TABLE outbox_events ADD CONSTRAINT chk_occurred_not_future {rule[0]}"
        connection.execute(sql.SQL(put_back + ("" if "NOT VALID" in rule[0] else " NOT VALID")))
    connection.execute("SET LOCAL session_replication_role = origin")
