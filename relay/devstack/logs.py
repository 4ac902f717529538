"""Show the logs of several processes as one: each line with the name of its process."""

from __future__ import annotations

import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from relay.telemetry.logs import colored

_POLL_SECONDS: Final = 0.05
_COLORS: Final = (36, 33, 35, 32, 34, 31)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: A line without an end is printed once it has so many bytes.
_LONGEST_LINE: Final = 65_536
#: A log that is longer when its process starts begins anew.
_LIMIT_BYTES: Final = 10_000_000


@dataclass(slots=True)
class _Log:
    name: str
    path: Path
    color: int
    offset: int
    rest: bytes = b""

    def new_lines(self, *, all_of_it: bool = False) -> list[str]:
        """Read the added lines. A line without an end is kept for later, unless ``all_of_it`` is set."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                added = file.read()
        except FileNotFoundError:
            return []
        self.offset += len(added)
        *lines, self.rest = (self.rest + added).split(b"\n")
        if self.rest and (all_of_it or len(self.rest) > _LONGEST_LINE):
            lines.append(self.rest)
            self.rest = b""
        return [line.decode(errors="replace") for line in lines]


class LogConsole:
    """Prints ``name | line`` for every line the followed files get, coloured on a terminal.

    It reads the log files. So no process waits for the terminal, and the files can be read later. Once the output
    is closed (``relay dev | head``), `closed` is set and nothing more is printed.
    """

    def __init__(self, output: IO[str] | None = None, *, width: int = 9) -> None:
        self._output = output or sys.stdout
        self._color = colored(self._output)
        self._width = width
        self._logs: list[_Log] = []
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self.closed = threading.Event()

    def start(self) -> None:
        """Begin to print."""
        self._thread.start()

    def stop(self) -> None:
        """Print the rest and end; harmless when never started."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        self._print_new(all_of_it=True)

    def follow(self, name: str, path: Path) -> None:
        """Show lines that are added to a log from now on."""
        offset = path.stat().st_size if path.exists() else 0
        color = _COLORS[len(self._logs) % len(_COLORS)]
        with self._lock:
            self._logs.append(_Log(name, path, color, offset))

    def say(self, text: str) -> None:
        """Print lines of our own."""
        with self._lock:
            for line in text.splitlines():
                self._print("relay", 1, line)

    def _run(self) -> None:
        while not self._end.wait(_POLL_SECONDS):
            self._print_new()

    def _print_new(self, *, all_of_it: bool = False) -> None:
        with self._lock:
            for log in self._logs:
                for line in log.new_lines(all_of_it=all_of_it):
                    self._print(log.name, log.color, line)

    def _print(self, name: str, color: int, line: str) -> None:
        if self.closed.is_set():
            return
        prefix = f"{name:<{self._width}} |"
        text = f"\x1b[{color}m{prefix}\x1b[0m {line}" if self._color else f"{prefix} {_ESCAPES.sub('', line)}"
        try:
            self._output.write(text.rstrip() + "\n")
            self._output.flush()
        except (OSError, ValueError):
            self.closed.set()


def rotate(log: Path) -> None:
    """Begin a log anew if it is long. The old one stays as ``NAME.log.1``."""
    if log.exists() and log.stat().st_size > _LIMIT_BYTES:
        log.replace(log.with_suffix(".log.1"))


def last_lines(path: Path, count: int = 20) -> str:
    """Return the end of a log, to explain why its process ended."""
    try:
        lines = path.read_bytes().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(_ESCAPES.sub("", line) for line in lines[-count:])
