"""The handler service as a process, and a client that asks as much of it as it can do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

from benchmarks.fleet import ROOT
from benchmarks.turns import wait_until
from benchmarks.workload import wire_messages
from relay.devstack import configuration, processes, spawn
from relay.devstack.http_checks import get
from relay.devstack.ports import LOOPBACK, free_port

#: As many as two workers with eight threads each have.
_CONNECTIONS: Final = 16


class Handler:
    """``python -m benchmarks.service``. A context manager."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "service.log"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "benchmarks.service", str(self._port)]
        environment = {**configuration.base_environment(inherit=False), "PYTHONPATH": str(ROOT)}
        self._process = spawn(command, log=self._log, directory=ROOT, environment=environment)
        health = self.url.replace("/handle", "/healthz")
        wait_until("the handler service answers", lambda: get(health) is not None, seconds=30)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            processes.kill(self._process.pid)
            self._process.wait()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}/handle"

    def rate(self, count: int) -> float:
        """Requests per second over as many connections as the workers have threads."""
        batches = wire_messages("source", "http", count)
        requests = iter([self._request(body) for batch in batches for _, _, body in batch])

        async def ask() -> None:
            reader, writer = await asyncio.open_connection(LOOPBACK, self._port)
            for request in requests:
                writer.write(request)
                if not (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200"):
                    raise SystemExit("the handler service refused an event")
            writer.close()

        async def ask_all() -> float:
            start = time.perf_counter()
            await asyncio.gather(*(ask() for _ in range(_CONNECTIONS)))
            return time.perf_counter() - start

        return count / asyncio.run(ask_all())

    def _request(self, body: bytes) -> bytes:
        head = f"POST /handle HTTP/1.1\r\nHost: {LOOPBACK}:{self._port}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
