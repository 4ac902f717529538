"""As an actor module: lets a run shift the clock of a worker and block its event loop, by files in a directory.

The directory is that of the worker's failpoints (`relay.failpoints`), which each worker of a run has for itself.
In it, ``clock`` holds the seconds by which the process's wall clock is wrong, and ``stall`` the seconds for which
its event loop is to stand still. ``clock.<pid>`` then tells what the process takes for the time.
"""

from __future__ import annotations

import datetime as real
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

CLOCK: Final = "clock"
STALL: Final = "stall"
_LOOK_SECONDS: Final = 0.1
#: Where the product asks for the time; pydantic's models keep the class that they were made with.
_ASKING: Final = ("relay.commands", "relay.adapters", "relay.telemetry", "relay.cron", "consumer", "tasks")

_time, _time_ns = time.time, time.time_ns
_offset = 0.0


class _Same(type(real.datetime)):  # type: ignore[misc]
    """What is a datetime is one of the shifted class, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, real.datetime)


class _Shifted(real.datetime, metaclass=_Same):
    """A datetime whose ``now`` is wrong; what it returns is an ordinary one."""

    @classmethod
    def now(cls, tz: real.tzinfo | None = None) -> Any:
        return real.datetime.now(tz) + real.timedelta(seconds=_offset)


def shift(seconds: float) -> None:
    """Let the process take the time for that of so many seconds later. The monotonic clock stays right."""
    global _offset  # noqa: PLW0603 - a process has one clock
    _offset = seconds
    time.time = lambda: _time() + _offset
    time.time_ns = lambda: _time_ns() + int(_offset * 1_000_000_000)
    for name, module in list(sys.modules.items()):
        if name.startswith(_ASKING) and getattr(module, "datetime", None) is real.datetime:
            module.datetime = _Shifted  # type: ignore[attr-defined]


def watch(directory: Path) -> None:
    """Obey the files of a directory for ever."""
    while True:
        _set_clock(directory)
        _stall(directory / STALL)
        time.sleep(_LOOK_SECONDS)


def _set_clock(directory: Path) -> None:
    try:
        wanted = float((directory / CLOCK).read_text())
    except (OSError, ValueError):
        return
    if wanted != _offset:
        shift(wanted)
        (directory / f"{CLOCK}.{os.getpid()}").write_text(repr(time.time()))


def _stall(order: Path) -> None:
    taken = order.with_suffix(f".{os.getpid()}")
    try:
        order.rename(taken)
        seconds = float(taken.read_text())
    except (OSError, ValueError):
        return
    from relay.adapters.workers import event_loop  # noqa: PLC0415 - there is none before the worker has booted

    event_loop().loop.call_soon_threadsafe(time.sleep, seconds)


def _begin() -> None:
    from relay.actors import settings  # noqa: PLC0415 - it loads this module

    if settings.failpoints is not None:
        threading.Thread(target=watch, args=[settings.failpoints], name="chaos-levers", daemon=True).start()


if "relay.actors" in sys.modules:
    _begin()
