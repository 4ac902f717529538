"""A handler of a service with one subscription. It keeps nothing of what it is given."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

from consumer.handlers import IncomingEvent, handles

_INSERT = text("INSERT INTO seen (subscription, message_id, size) VALUES ('alone', :id, :size)")


@handles("drawn")
def alone(event: IncomingEvent, session: Session) -> None:
    session.execute(_INSERT, {"id": str(event.message_id), "size": len(event.payload["text"])})
