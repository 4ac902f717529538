"""``relay ops`` beside a fleet, and people who look at its lists so and so often a second."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Self

import psutil

from benchmarks.fleet import Fleet
from benchmarks.turns import wait_until
from relay.devstack.http_checks import get
from relay.devstack.ports import LOOPBACK, free_port

#: Lists of all rows, of some states, and by a field without an index; as pages of the console and of the API.
PATHS: Final = (
    "/contexts/{0}/events",
    "/contexts/{0}/events?status=waiting&status=failing",
    "/contexts/{0}/events?event_type=made&since=1h",
    "/contexts/{0}/tasks",
    "/api/v1/contexts/{0}/events",
    "/api/v1/contexts/{0}/events?status=published",
    "/api/v1/contexts/{0}/events?aggregate_id=nothing",
    "/api/v1/contexts/{0}/inbox",
)
_CONNECTIONS: Final = 16
_RELAY: Final = "from relay.cli import main; main()"


@dataclass(slots=True)
class Seen:
    """What those who looked have seen. ``took``: milliseconds from when each request was due to its answer."""

    took: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.took) / self.seconds


class Looking:
    """``relay ops`` for a context, asked at a rate from one thread. A context manager; then ``seen`` is filled."""

    def __init__(self, fleet: Fleet, context: str, rate: float) -> None:
        self.seen = Seen()
        self._fleet, self._port, self._rate = fleet, free_port(), rate
        self._paths: Sequence[str] = [path.format(context) for path in PATHS]
        self._enough = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._look()))
        self._process: subprocess.Popen[bytes] | None = None
        self._before = 0.0

    def __enter__(self) -> Self:
        self._process = self._fleet.start("ops", "-c", _RELAY, "ops", "--port", str(self._port))
        health = f"http://{LOOPBACK}:{self._port}/healthz"
        wait_until("relay ops answers", lambda: get(health) is not None, seconds=30)
        for path in self._paths:  # it connects when it is first asked
            urllib.request.urlopen(f"http://{LOOPBACK}:{self._port}{path}", timeout=30).close()
        self._before = self._cpu()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()
        if self._process:
            self.seen.cpu = self._cpu() - self._before
            self._process.terminate()
            self._process.wait()

    def _cpu(self) -> float:
        assert self._process is not None
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    async def _look(self) -> None:
        begin = time.perf_counter()
        turns = count()
        await asyncio.gather(*(self._ask(begin, turns) for _ in range(_CONNECTIONS)))
        self.seen.seconds = time.perf_counter() - begin

    async def _ask(self, begin: float, turns: Iterator[int]) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, self._port)
        while not self._enough.is_set():
            number = next(turns)
            due = begin + number / self._rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            path = self._paths[number % len(self._paths)]
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}:{self._port}\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if not head.startswith(b"http/1.1 200"):
                raise SystemExit(f"relay ops did not answer {path}: {head[:100]!r}")
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            self.seen.took.append(1e3 * (time.perf_counter() - due))
        writer.close()
