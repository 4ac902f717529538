"""The treasury: an effect for each event, in the transaction that marks its message as processed (§14)."""

from __future__ import annotations

from typing import Final

import psycopg
from pydantic import BaseModel

from consumer.handlers import IncomingEvent, handles

TABLES: Final = "CREATE TABLE IF NOT EXISTS effects (id text NOT NULL, what text NOT NULL)"


class Payout(BaseModel):
    """The payload of payout.generated."""

    payout_id: str
    team_id: str


class Stock(BaseModel):
    """The payload of rwa.inventory.updated."""

    item_id: str
    count: int


@handles("payout_generated")  # the topic with underscores
def pay(payout: Payout, event: IncomingEvent, connection: psycopg.Connection) -> None:
    """Pay a team."""
    _take_effect(connection, event, f"{payout.payout_id} to {payout.team_id}")


@handles("rwa_inventory_updated")
def count(stock: Stock, event: IncomingEvent, connection: psycopg.Connection) -> None:
    """Count what there is of an item."""
    _take_effect(connection, event, f"{stock.count} of {stock.item_id}")


def _take_effect(connection: psycopg.Connection, event: IncomingEvent, what: str) -> None:
    connection.execute("INSERT INTO effects (id, what) VALUES (%s, %s)", [str(event.message_id), what])
