"""Whether a task is cancelled, for loops that must end then."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Whether the current task has been cancelled.

    The CancelledError alone does not tell. On Python 3.11, `asyncio.wait_for` loses a cancellation that arrives
    together with the result, and the servers' clients use it. Also, a CancelledError may be that of another task.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
