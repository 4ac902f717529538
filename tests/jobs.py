"""Messages for actors that only tests have."""

from __future__ import annotations

from typing import Any

from dramatiq import Message

from relay.adapters.dramatiq.shares import SHARE


def job(queue: str, actor: str, *args: str | int | list[str] | None, share: str | None = None) -> Message[Any]:
    options = {} if share is None else {SHARE: share}
    return Message(queue_name=queue, actor_name=actor, args=args, kwargs={}, options=options)
