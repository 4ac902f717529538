"""The shares of a queue: the share with the least work under way goes first.

Messages of a subscription, tasks of a context and runs of a cron job each have a share of their queue. So a
handler that hangs holds up no other share. The share stands in the message, and at the beginning of its id in
Redis, where the script that fetches reads it.

What is tried again has a share of its own, beside the share of what was never tried. So thousands of failing rows
do not delay new ones of their subscription, and a stream of new ones does not delay retries.

A worker defers a message that it cannot take now: it moves the message to the list of its share, and looks at the
next one. A worker with capacity for the share takes from that list first. The lists belong to the queue, not to a
worker. So messages stay in order within their share, and when a worker dies, others take what it deferred.
"""

from __future__ import annotations

from typing import Any, Final

from dramatiq.broker import MessageProxy
from dramatiq.message import Message

#: The option that names a share.
SHARE: Final = "share"
#: Ends the name of a share in the id of a message.
MARK: Final = "|"
#: Ends the name of the share of what is tried again.
AGAIN: Final = "/again"
#: Ends the key that names the shares with deferred messages, and the keys of their lists.
DEFERRED: Final = ".deferred"


def share_of(message: Message[Any] | MessageProxy) -> str:
    """The share of a message; empty when its queue has no shares."""
    share = str(message.options.get(SHARE, ""))
    # The count of dramatiq's middleware that delays a message which is to be tried again.
    again = share and message.options.get("retries") and not share.endswith(AGAIN)
    return share + AGAIN if again else share
