"""(d) What the bare task queue does: a no-op actor on Dramatiq's stock broker with its stock middleware."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=os.environ["BARE_REDIS_URL"], namespace="bare")
dramatiq.set_broker(broker)


@dramatiq.actor
def nothing(context: str, id: str) -> None:
    """Do nothing, with the arguments of a task."""
