"""The same for a service with one subscription."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

from consumer.handlers import IncomingEvent, handles
from tests.acceptance.personal_effects import digest


@handles("order_placed")
def alone(event: IncomingEvent, session: Session) -> None:
    values = {"id": str(event.message_id), "digest": digest(event.payload)}
    session.execute(text("INSERT INTO seen VALUES ('alone', :id, :digest)"), values)
