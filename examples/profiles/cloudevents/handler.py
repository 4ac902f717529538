"""Billing: an effect for each order, in the transaction that marks its message as processed."""

from __future__ import annotations

from typing import Final

import psycopg
from pydantic import BaseModel

from consumer.handlers import IncomingEvent, handles

TABLES: Final = "CREATE TABLE IF NOT EXISTS effects (id text NOT NULL, what text NOT NULL)"


class OrderPlaced(BaseModel):
    """What billing needs of an order. Other fields are ignored."""

    order_id: str
    cents: int


@handles("order_placed", version=1)
def bill(order: OrderPlaced, event: IncomingEvent, connection: psycopg.Connection) -> None:
    """Write down what to bill, under the id of the event."""
    what = f"{order.order_id}: {order.cents} cents"
    connection.execute("INSERT INTO effects (id, what) VALUES (%s, %s)", [str(event.message_id), what])
