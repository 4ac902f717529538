"""As an actor module: lets a run shift the clock of a worker and block its event loop, by files in a directory.

The directory holds the worker's failpoints (`relay.failpoints`); each worker of a run has its own. The file
``clock`` holds the seconds by which the process's wall clock is wrong; ``stall``, the seconds for which its event
loop must stand still. The process writes its own time to ``clock.<pid>``.
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
#: Modules in which the product asks for the time. Pydantic's models keep the class that they were made with.
_ASKING: Final = ("relay.commands", "relay.adapters", "relay.telemetry", "relay.cron", "consumer", "tasks")

_time, _time_ns = time.time, time.time_ns
_offset = 0.0


class _Same(type(real.datetime)):  # type: ignore[misc]
    """Makes every datetime an instance of the shifted class, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, real.datetime)


class _Shifted(real.datetime, metaclass=_Same):
    """A datetime whose ``now`` is wrong; what it returns is an ordinary one."""

    @classmethod
    def now(cls, tz: real.tzinfo | None = None) -> Any:
        return real.datetime.now(tz) + real.timedelta(seconds=_offset)


def shift(seconds: float) -> None:
    """Shift the process's wall clock by so many seconds. The monotonic clock stays right."""
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
        draft = directory / f"{CLOCK}.{os.getpid()}.new"
        draft.write_text(repr(time.time()))
        # Whoever looks sees the whole time or none.
        draft.replace(draft.with_suffix(""))


def _stall(order: Path) -> None:
    taken = order.with_suffix(f".{os.getpid()}")
    try:
        order.rename(taken)
        seconds = float(taken.read_text())
    except (OSError, ValueError):
        return
    from relay.adapters.dramatiq.runtime import event_loop  # noqa: PLC0415 - there is none before the worker has booted

    event_loop().loop.call_soon_threadsafe(time.sleep, seconds)


def _begin() -> None:
    from relay.worker import settings  # noqa: PLC0415 - it loads this module

    if settings.failpoints is not None:
        threading.Thread(target=watch, args=[settings.failpoints], name="chaos-levers", daemon=True).start()


if "relay.actors" in sys.modules:
    _begin()
