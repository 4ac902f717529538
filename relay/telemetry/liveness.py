"""Whether processes still work: each beats from its event loop, and a probe sees a beat that has stopped."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from relay.domain.members import Usage

#: Names what is stuck; empty if nothing is.
Stuck = Callable[[], Sequence[str]]

_INTERVAL_S: Final = 2.0
#: Seconds after its last beat in which a process counts as stuck; also how long it may take to start.
PATIENCE_S: Final = 60.0
#: How long a loop may take to answer a probe in its own process, in seconds.
_ANSWER_S: Final = 5.0
_PREFIX: Final = "alive_"


class Beat(NamedTuple):
    """What a process is doing ``at`` a time of the monotonic clock, which all processes of a machine share."""

    at: float
    threads: int = 0
    busy: int = 0
    waiting: int = 0

    @property
    def text(self) -> bytes:
        """The beat as text, always of one length, so that the next beat overwrites all of it."""
        return f"{self.at:020.3f} {self.threads:06} {self.busy:06} {self.waiting:09}".encode()


class Heartbeat:
    """Writes the beat of a worker process into a file of a directory. The file is locked while the process lives.

    ``usage``: returns what the process is doing now, if it can say.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.usage: Callable[[], Usage | None] = lambda: None
        self._path = directory / f"{_PREFIX}{os.getpid()}"
        self._clock = clock
        hidden = directory / f"starting_{os.getpid()}"  # a file without a lock would be taken for one left behind
        self._file = hidden.open("w+")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._beating: asyncio.Task[None] | None = None
        self.beat()
        hidden.rename(self._path)

    def beat(self) -> None:
        """Write a beat."""
        usage = self.usage() or Usage()
        beat = Beat(self._clock(), usage.threads, usage.busy, usage.waiting)
        os.pwrite(self._file.fileno(), beat.text, 0)

    async def start(self) -> None:
        """Beat from the event loop."""
        self._beating = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Remove the file: the process ends."""
        if self._beating is not None:
            self._beating.cancel()
        self._path.unlink(missing_ok=True)
        self._file.close()

    async def _run(self) -> None:
        while True:
            with suppress(OSError):  # a full disk is no reason to stop beating
                self.beat()
            await asyncio.sleep(_INTERVAL_S)


def stuck_in(directory: Path, clock: Callable[[], float] = time.monotonic) -> Sequence[str]:
    """The processes of a directory that are alive and have stopped beating, or that there is none."""
    beats = beats_in(directory)
    if not beats:
        return ["no worker process"]
    return [f"process {name}" for name, beat in beats.items() if clock() - beat.at > PATIENCE_S]


def beats_in(directory: Path) -> Mapping[str, Beat]:
    """The last beat of each living process of a directory, by its process id."""
    living = [file for file in sorted(directory.glob(f"{_PREFIX}*")) if _lives(file)]
    return {file.name.removeprefix(_PREFIX): _read_beat(file) for file in living}


def stuck_loop(loop: asyncio.AbstractEventLoop, seconds: float = _ANSWER_S) -> Sequence[str]:
    """Whether the event loop of this process does not answer another thread, or has ended."""
    answer: Future[None] = Future()
    try:
        loop.call_soon_threadsafe(answer.set_result, None)
        answer.result(seconds)
    except (FutureTimeout, RuntimeError):  # it hangs, or is closed
        return ["event loop"]
    return []


def _lives(file: Path) -> bool:
    """Whether the process of a file still has its lock. The file of one that was killed is removed."""
    try:
        with file.open() as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            file.unlink(missing_ok=True)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _read_beat(file: Path) -> Beat:
    try:
        at, *numbers = file.read_text().split()
        return Beat(float(at), *map(int, numbers))
    except (OSError, ValueError):  # it ends just now
        return Beat(float("inf"))
