"""(d) Bare Dramatiq: two processes with eight threads each that run a no-op actor, and a loop that sends to it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final
from uuid import uuid4

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

from benchmarks.turns import wait_until
from relay.devstack import configuration, processes, spawn

_ROOT: Final = Path(__file__).parents[2]
_QUEUE: Final = "bare:default"
_HEARTBEATS: Final = "bare:__heartbeats__"
_PROCESSES: Final = 2
_POLL: Final = 0.005


class BareDramatiq:
    """Its workers run only while they are measured."""

    def __init__(self, redis_url: str, directory: Path) -> None:
        self._url, self._log = redis_url, directory / "bare.log"
        self._redis = redis.Redis.from_url(redis_url)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the workers and return once both processes fetch."""
        if self._process is None:
            self._redis.delete(_HEARTBEATS)
            command = ("-m", "dramatiq", "benchmarks.reference.actors")
            size = ("--processes", str(_PROCESSES), "--threads", "8")
            base = {**configuration.base_environment(inherit=False), "PYTHONPATH": str(_ROOT)}
            environment = {**base, "BARE_REDIS_URL": self._url}
            arguments = [sys.executable, *command, *size]
            self._process = spawn(arguments, log=self._log, directory=_ROOT, environment=environment)
            wait_until("the bare workers fetch", lambda: self._redis.zcard(_HEARTBEATS) >= _PROCESSES, seconds=60)

    def stop(self) -> None:
        """Kill the workers: nothing is under way."""
        if self._process:
            processes.kill(self._process.pid)
            self._process.wait()
            self._process = None

    def rate(self, count: int) -> float:
        """Messages per second, of messages that are in the queue all at once.

        From the first acknowledgement, as the stock consumer looks after a pause of up to a second, to the last.
        """
        self.start()
        ids = [str(uuid4()) for _ in range(count)]
        for id in ids:
            message = _message().copy(options={"redis_message_id": id})
            self._redis.hset(f"{_QUEUE}.msgs", id, message.encode())
        self._redis.rpush(_QUEUE, *ids)
        self._until_left(count - 1)
        start, left = time.perf_counter(), self._left()
        self._until_left(0)
        return left / (time.perf_counter() - start)

    def send_rate(self, count: int) -> float:
        """Messages per second that a loop sends with the stock broker, while nobody reads them."""
        self.stop()
        # `actor.send` makes a message and hands it to the broker.
        broker = RedisBroker(url=self._url, namespace="bare")
        broker.declare_queue("default")
        start = time.perf_counter()
        for _ in range(count):
            broker.enqueue(_message())
        seconds = time.perf_counter() - start
        broker.close()
        self._redis.delete(_QUEUE, f"{_QUEUE}.msgs")
        return count / seconds

    def _left(self) -> int:
        return int(self._redis.hlen(f"{_QUEUE}.msgs"))

    def _until_left(self, most: int) -> None:
        while self._left() > most:
            if self._process and self._process.poll() is not None:
                raise SystemExit(f"the bare workers ended; see {self._log}")
            time.sleep(_POLL)


def _message() -> dramatiq.Message[None]:
    return dramatiq.Message(
        queue_name="default", actor_name="nothing", args=("bench", str(uuid4())), kwargs={}, options={}
    )
