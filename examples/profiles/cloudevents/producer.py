"""The shop: an order and its event, in one transaction."""

from __future__ import annotations

from typing import Final

import psycopg
from pydantic import BaseModel

from relay import Outbox, event

CONTEXT: Final = "shop"
TABLES: Final = "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, cents int NOT NULL)"

outbox = Outbox(CONTEXT, undeclared=True)


@event("order_placed", version=1, aggregate_type="order", aggregate_id="order_id")
class OrderPlaced(BaseModel):
    """What other services hear of an order."""

    order_id: str
    cents: int


def record(connection: psycopg.Connection, number: int) -> str:
    """Write an order and its event, and return the event's id. The caller commits."""
    order = OrderPlaced(order_id=f"order-{number}", cents=100 * number)
    connection.execute("INSERT INTO orders (id, cents) VALUES (%s, %s)", [order.order_id, order.cents])
    return str(outbox.add(connection, order))
