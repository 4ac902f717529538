"""Handlers of the next release, which knows version 2, too."""

from __future__ import annotations

from sqlalchemy.orm import Session

from consumer.handlers import IncomingEvent, MessageContext, handles
from tests.acceptance.versions_before import write


@handles("order_changed", version=1)
@handles("order_changed", version=2)
def changed(event: IncomingEvent, session: Session, context: MessageContext) -> None:
    """Handle both versions."""
    write(event, session, context)
