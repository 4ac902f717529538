"""A service that knows SQL and no library: its change and its event, in one transaction (§4)."""

from __future__ import annotations

import json
from typing import Final

import psycopg

CONTEXT: Final = "dao"
TABLES: Final = "CREATE TABLE IF NOT EXISTS payouts (id text PRIMARY KEY, status text NOT NULL)"
INSERT: Final = "INSERT INTO microdao.outbox_events (id, stream, topic, payload) VALUES (%s, %s, %s, %s::jsonb)"
INVENTORY_EVERY: Final = 3


def record(connection: psycopg.Connection, number: int) -> str:
    """Write a payout and its event, and return the event's id. The caller commits."""
    payout = f"p_{number:06}"
    connection.execute("INSERT INTO payouts (id, status) VALUES (%s, 'generated')", [payout])
    id = f"evt_{number:012}"
    if number % INVENTORY_EVERY == 0:
        where, payload = ("STREAM_RWA", "rwa.inventory.updated"), {"item_id": f"i_{number}", "count": number}
    else:
        where, payload = ("STREAM_PAYOUT", "payout.generated"), {"payout_id": payout, "team_id": f"t_{number % 7}"}
    connection.execute(INSERT, [id, *where, json.dumps(payload)])
    return id
