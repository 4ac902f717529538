"""Handlers that note what they were given: which message, the size of its text, and a digest of it."""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer.handlers import IncomingEvent, handles

TABLE = "CREATE TABLE seen (id bigserial PRIMARY KEY, subscription text, message_id text, size int, digest text)"
_INSERT = text(
    "INSERT INTO seen (subscription, message_id, size, digest) VALUES (:subscription, :id, :size, :digest)"
)


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def _values(subscription: str, event: IncomingEvent) -> dict[str, Any]:
    content = event.payload["text"]
    size, id = len(content), str(event.message_id)
    return {"subscription": subscription, "id": id, "size": size, "digest": digest(content)}


@handles("drawn", subscription="from_vibespro")
def in_a_thread(event: IncomingEvent, session: Session) -> None:
    session.execute(_INSERT, _values("from_vibespro", event))


@handles("drawn", subscription="on_loop")
async def on_the_loop(event: IncomingEvent, session: AsyncSession) -> None:
    await session.execute(_INSERT, _values("on_loop", event))


@handles("drawn", subscription="in_chunks")
def in_a_chunk(event: IncomingEvent, session: Session) -> None:
    session.execute(_INSERT, _values("in_chunks", event))


@handles("drawn", subscription="in_order")
def in_order(event: IncomingEvent, session: Session) -> None:
    session.execute(_INSERT, _values("in_order", event))
