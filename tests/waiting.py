"""How tests wait: for a condition, with a deadline that only a broken product reaches.

A deadline costs nothing while the product works, so it is long: a busy machine must not turn a test red.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

#: Longer than anything takes on a machine that does three things at once.
DEADLINE_S = 90.0
_POLL_S = 0.02


def wait_for(what: str, condition: Callable[[], Any], seconds: float = DEADLINE_S) -> Any:
    """Poll until ``condition`` gives something true and return it; fail naming ``what`` after ``seconds``."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        _check(what, end, seconds, result)
        time.sleep(_POLL_S)
    return result


async def eventually(what: str, condition: Callable[[], Any], seconds: float = DEADLINE_S) -> Any:
    """Do as `wait_for` without holding up the event loop; ``condition`` may be a coroutine function."""
    end = time.monotonic() + seconds
    while True:
        result = condition()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return result
        _check(what, end, seconds, result)
        await asyncio.sleep(_POLL_S)


def moves_until(done: Callable[[], bool], progress: Callable[[], object], patience: float) -> bool:
    """Wait until all is done; False when ``progress`` has given the same for ``patience`` seconds."""
    last, moved = progress(), time.monotonic()
    while not done():
        before, last = last, progress()
        if last != before:
            moved = time.monotonic()
        elif time.monotonic() - moved > patience:
            return False
        time.sleep(0.3)  # a look may be half a dozen connections
    return True


def not_yet(condition: Callable[[], Any], seconds: float = DEADLINE_S) -> Callable[[], bool]:
    """For what runs as long as it is told to: true until ``condition`` holds; fails after ``seconds``."""
    end = time.monotonic() + seconds

    def go_on() -> bool:
        done = condition()
        if not done:
            _check("it is done", end, seconds, done)
        return not done

    return go_on


def _check(what: str, end: float, seconds: float, last: object) -> None:
    if time.monotonic() > end:
        raise AssertionError(f"not within {seconds:g} s: {what} (the last look gave {last!r:.200})")
