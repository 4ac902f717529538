"""The shares of a queue: the share with the least work under way goes first.

Messages of a subscription, tasks of a context and runs of a cron job each have a share of their queue. So a
handler that hangs holds up no other share. The share stands in the message, and at the beginning of its id in
Redis, where the script that fetches reads it.

A worker puts a message it has no capacity for into a list aside, one list for each share. So it sees the messages
behind it. A worker with capacity for the share takes from its list first. The lists belong to the queue, not to a
worker: messages stay in order within their share, and when a worker dies, the others take what it put aside.
"""

from __future__ import annotations

from typing import Any, Final

from dramatiq.broker import MessageProxy
from dramatiq.message import Message

#: The option that names a share.
SHARE: Final = "share"
#: Ends the name of a share in the id of a message.
MARK: Final = "|"
#: Ends the key that names the shares with messages that were put aside.
ASIDE: Final = ".aside"


def share_of(message: Message[Any] | MessageProxy) -> str:
    """The share of a message; empty when its queue has no shares."""
    return str(message.options.get(SHARE, ""))
