"""Whether a task has been cancelled, for loops that must not outlive it."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Whether somebody has cancelled the task that asks.

    Its CancelledError may never have come: on Python 3.11 `asyncio.wait_for`, in which the clients of servers
    wait, loses a cancellation that meets the answer. And one that came may be that of another task.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
