"""Outbox rows that can never be published: raw SQL may write them, past the checks of `relay.Outbox`."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import sql

_DEEP: Final = "[" * 1_500 + "]" * 1_500

#: Columns that differ from a good row's. The database takes all of them.
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
    {"headers": "[]"},
    {"headers": _DEEP},
    {"occurred_at": "-infinity"},
)


def insert(connection: psycopg.Connection[Any], id: UUID, key: str, source: str, number: int) -> None:
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
