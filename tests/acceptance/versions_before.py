"""Handlers of a release that knows version 1 only."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from consumer.handlers import IncomingEvent, MessageContext, handles

TABLE = """CREATE TABLE effects (
    at bigint GENERATED ALWAYS AS IDENTITY,
    key text NOT NULL, n int NOT NULL, version int NOT NULL, attempt int NOT NULL)"""
_INSERT = text("INSERT INTO effects (key, n, version, attempt) VALUES (:key, :n, :version, :attempt)")


def write(event: IncomingEvent, session: Session, context: MessageContext) -> None:
    """Note that an event was handled, and in which version."""
    payload: Any = event.payload
    found = {"key": event.partition_key, "n": payload["n"], "version": event.event_version}
    session.execute(_INSERT, {**found, "attempt": context.attempt})


@handles("order_changed", version=1)
def changed(event: IncomingEvent, session: Session, context: MessageContext) -> None:
    """Handle the first version."""
    write(event, session, context)
