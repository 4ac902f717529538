"""Handlers that note what they were given of a person, by its digest: plain text is nowhere in a table."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer.handlers import IncomingEvent, handles

TABLE = "CREATE TABLE seen (subscription text, message_id text, digest text)"
_INSERT = text("INSERT INTO seen VALUES (:subscription, :id, :digest)")


def digest(payload: Any) -> str:
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()


def _values(subscription: str, event: IncomingEvent) -> dict[str, str]:
    return {"subscription": subscription, "id": str(event.message_id), "digest": digest(event.payload)}


@handles("order_placed", subscription="from_vibespro")
def in_a_thread(event: IncomingEvent, session: Session) -> None:
    session.execute(_INSERT, _values("from_vibespro", event))


@handles("order_placed", subscription="on_loop")
async def on_the_loop(event: IncomingEvent, session: AsyncSession) -> None:
    await session.execute(_INSERT, _values("on_loop", event))


@handles("order_placed", subscription="in_chunks")
def in_a_chunk(event: IncomingEvent, session: Session) -> None:
    session.execute(_INSERT, _values("in_chunks", event))


@handles("order_placed", subscription="skips")
def not_called(event: IncomingEvent, session: Session) -> None:
    session.execute(_INSERT, _values("skips", event))


@handles("order_placed", subscription="refuses")
async def not_called_either(event: IncomingEvent, session: AsyncSession) -> None:
    await session.execute(_INSERT, _values("refuses", event))
