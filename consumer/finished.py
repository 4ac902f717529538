"""What follows a message that is done with, for many messages at a time."""

from __future__ import annotations

import asyncio

from consumer.process import ProcessInboxMessage
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.handling.finished import Finished
from relay.ports import ClaimedMessage


def finished(
    one: ProcessInboxMessage, inbox: PostgresInboxAdapter, loop: asyncio.AbstractEventLoop
) -> Finished[ClaimedMessage]:
    """Mark and finish many messages of a subscription at a time."""
    # In an ordered subscription the next message of the key waits for it.
    return Finished(inbox.mark_all_processed, one.finish, loop, pause=not one.ordered)
