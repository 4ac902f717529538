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
_POLL: Final = 0.005


class BareDramatiq:
    """Started once and frozen while something else is measured."""

    def __init__(self, redis_url: str, directory: Path) -> None:
        self._url, self._directory = redis_url, directory
        self._redis = redis.Redis.from_url(redis_url)
        # The stock broker of a sender: a loop of `actor.send` does just this.
        self._broker = RedisBroker(url=redis_url, namespace="bare")
        self._broker.declare_queue("default")
        self._process: subprocess.Popen[bytes] | None = None

    def wake(self) -> None:
        """Start the workers, or let them continue."""
        if self._process:
            processes.thaw(self._process.pid)
            return
        command = ("-m", "dramatiq", "benchmarks.reference.actors", "--processes", "2", "--threads", "8")
        base = {**configuration.base_environment(inherit=False), "PYTHONPATH": str(_ROOT)}
        environment = {**base, "BARE_REDIS_URL": self._url}
        log = self._directory / "bare.log"
        self._process = spawn([sys.executable, *command], log=log, directory=_ROOT, environment=environment)
        # Both processes beat, which they do from their first fetch on.
        wait_until("both bare workers are up", lambda: self._redis.zcard("bare:__heartbeats__") >= 2, seconds=60)
        self.rate(200)

    def rest(self) -> None:
        """Freeze the workers."""
        if self._process:
            processes.freeze(self._process.pid)

    def rate(self, count: int) -> float:
        """Messages per second, of messages that are in the queue all at once.

        From the first acknowledgement, as the stock consumer looks after a pause of up to a second, to the last.
        """
        messages = [_message() for _ in range(count)]
        ids = [str(uuid4()) for _ in messages]
        for id, message in zip(ids, messages, strict=True):
            self._redis.hset(f"{_QUEUE}.msgs", id, message.copy(options={"redis_message_id": id}).encode())
        self._redis.rpush(_QUEUE, *ids)
        self._until_left(count - 1)
        start, left = time.perf_counter(), self._left()
        self._until_left(0)
        return left / (time.perf_counter() - start)

    def send_rate(self, count: int) -> float:
        """Messages per second of ``actor.send`` in a loop, while nobody reads them."""
        self.rest()
        start = time.perf_counter()
        for _ in range(count):
            self._broker.enqueue(_message())
        seconds = time.perf_counter() - start
        self._redis.delete(_QUEUE, f"{_QUEUE}.msgs")
        return count / seconds

    def _left(self) -> int:
        return int(self._redis.hlen(f"{_QUEUE}.msgs"))

    def _until_left(self, most: int) -> None:
        while self._left() > most:
            if self._process and self._process.poll() is not None:
                raise SystemExit(f"the bare workers ended; see {self._directory / 'bare.log'}")
            time.sleep(_POLL)


def _message() -> dramatiq.Message[None]:
    return dramatiq.Message(
        queue_name="default", actor_name="nothing", args=("bench", str(uuid4())), kwargs={}, options={}
    )
