"""Whose share of a queue a message is: of all that wait, whoever has least under way goes first.

Messages of a subscription, tasks of a context and runs of a cron job each have a share of their queue, so that one
whose handler hangs holds up nobody else. The share stands in the message, and at the beginning of its id in Redis,
where what a worker has no use for now is put aside.
"""

from __future__ import annotations

from typing import Any, Final

from dramatiq.broker import MessageProxy
from dramatiq.message import Message

#: The option that names a share.
SHARE: Final = "share"
#: What ends the name of a share in the id of a message.
MARK: Final = "|"


def share_of(message: Message[Any] | MessageProxy) -> str:
    """The share that a message is of; empty where its queue has none."""
    return str(message.options.get(SHARE, ""))
