"""Requests to stop: Ctrl-C, SIGTERM and a closed terminal all mean the same, and none of them is lost."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_S: Final = 0.05


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, which must be in the main thread, each of the signals raises KeyboardInterrupt.

    Python drops what is raised while an object is removed, such as in the callback of a weak reference. A signal
    that comes just then raises again a moment later.
    """
    before = {number: signal.signal(number, _interrupt) for number in (*_SIGNALS, signal.SIGALRM)}
    hook, sys.unraisablehook = sys.unraisablehook, _again
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_interrupts() -> None:
    """Ignore these signals from now on: the rest of the work is short."""
    for number in (*_SIGNALS, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _again(dropped: sys.UnraisableHookArgs) -> None:
    """Interrupt a moment later. From here the exception would be dropped, too."""
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    else:
        sys.__unraisablehook__(dropped)
