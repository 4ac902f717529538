"""Reads jobs from Redis. Another program may leave anything there, so nothing that is read is trusted."""

from __future__ import annotations

from typing import Any, Final

from dramatiq import Message

#: The longest text that names something: a share, an actor.
_MAX_NAME: Final = 500


def read_job(text: Any, id: bytes | None = None, queue: str | None = None) -> Message[Any] | None:
    """A job as it may be handled; None if its text is none.

    ``id``: the one under which Redis holds it; what the text says about that does not count. ``queue``: where it
    was found. A job of another queue is none, as nobody could acknowledge it.
    """
    try:
        message: Message[Any] = Message.decode(text if isinstance(text, bytes) else text.encode())
        if id is not None:
            message.options["redis_message_id"] = id.decode()
        fit = _fits(message) and (queue is None or message.queue_name == queue)
    except Exception:  # of an encoder: also RecursionError, and numbers with too many digits
        return None
    return message if fit else None


def _fits(message: Message[Any]) -> bool:
    fields: dict[str, Any] = message.asdict()
    options = fields["options"]
    kinds = isinstance(fields["args"], list | tuple) and isinstance(fields["kwargs"], dict)
    names = [fields["queue_name"], fields["actor_name"], fields["message_id"], options.get("share", "")]
    return (
        kinds
        and all(isinstance(it, str) and len(it.encode()) <= _MAX_NAME for it in names)
        and isinstance(options.get("task_priority", 0), int)
    )
