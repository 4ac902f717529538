from __future__ import annotations

import psycopg

from relay import Event, Outbox

CONTEXT = "vibespro"
TABLES = "CREATE TABLE IF NOT EXISTS vibes (number int PRIMARY KEY)"
OUTBOX = Outbox(CONTEXT)


def record(connection: psycopg.Connection, number: int) -> str:
    connection.execute("INSERT INTO vibes (number) VALUES (%s)", [number])
    created = Event(
        event_type="vibe_created",
        aggregate_type="vibe",
        aggregate_id=f"v{number % 7}",
        payload={"title": f"vibe {number}"},
    )
    return str(OUTBOX.add(connection, created))
