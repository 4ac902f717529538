"""The shares of a queue: the share with the least work under way goes first.

Messages of a subscription, tasks of a context and runs of a cron job each have a share of their queue. So a
handler that hangs holds up no other share. The share stands in the message, and at the beginning of its id in
Redis: a script there puts ids aside while a worker has no room for their share.
"""

from __future__ import annotations

from typing import Any, Final

from dramatiq.broker import MessageProxy
from dramatiq.message import Message

#: The option that names a share.
SHARE: Final = "share"
#: Ends the name of a share in the id of a message.
MARK: Final = "|"


def share_of(message: Message[Any] | MessageProxy) -> str:
    """The share of a message; empty when its queue has no shares."""
    return str(message.options.get(SHARE, ""))
