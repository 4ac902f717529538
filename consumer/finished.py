"""Finishes processed messages, many at a time."""

from __future__ import annotations

import asyncio

from consumer.process import ProcessInboxMessage
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.handling.finished import Finished
from relay.ports import ClaimedMessage


def finished(
    one: ProcessInboxMessage, inbox: PostgresInboxAdapter, loop: asyncio.AbstractEventLoop
) -> Finished[ClaimedMessage]:
    """Return what marks and finishes many messages of a subscription at a time."""
    # No pause in an ordered subscription: the next message of the key waits for this step.
    return Finished(inbox.mark_all_processed, one.finish, loop, pause=not one.ordered)
