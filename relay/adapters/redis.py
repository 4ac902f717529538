"""Dramatiq on Redis, tuned for a relay: a wake-up and a thread pool, nothing more.

Redis holds ids and may lose all of them at any moment; the tables are the truth. Against the stock
broker this one waits blockingly instead of polling, and enqueues a batch in one round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import dramatiq
import redis
import redis.exceptions
from dramatiq.brokers.redis import RedisBroker, _RedisConsumer
from dramatiq.common import current_millis, dq_name
from dramatiq.errors import ConnectionClosed
from dramatiq.middleware import Middleware
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from relay.domain.errors import QueueUnreachable

#: A blocking wait ends after this long, so that a stopping worker is not held up, in seconds.
_WAIT: Final = 1.0
#: The same on a delay queue, where the wait also bounds how late a retry starts.
_DELAY_WAIT: Final = 0.2
#: Every so many idle waits the broker's own fetch runs, which does the upkeep of its keys.
_UPKEEP: Final = 30


def create_broker(url: str, *, namespace: str, middleware: Sequence[Middleware]) -> RelayBroker:
    """A broker on ``url``; all its keys start with ``namespace``."""
    client = redis.Redis.from_url(
        url,
        socket_timeout=5,
        socket_connect_timeout=2,
        socket_keepalive=True,
        retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), 2),
    )
    return RelayBroker(client=client, namespace=namespace, middleware=list(middleware))


class RelayBroker(RedisBroker):
    """RedisBroker with a blocking wait on its queues and bulk enqueueing."""

    @property
    def consumer_class(self) -> type[_RedisConsumer]:
        return _BlockingConsumer

    def enqueue_many(self, messages: Sequence[dramatiq.Message[Any]]) -> None:
        """Enqueue messages in one round trip. Raises QueueUnreachable; some may be enqueued even then."""
        try:
            with self.client.pipeline(transaction=False) as pipeline:
                for message in messages:
                    # The two writes of the broker's own enqueue script, under a fresh id as it does.
                    key, identity = f"{self.namespace}:{message.queue_name}", str(uuid4())
                    copy = message.copy(options={"redis_message_id": identity})
                    pipeline.hset(f"{key}.msgs", identity, copy.encode())
                    pipeline.rpush(key, identity)
                pipeline.execute()
        except redis.exceptions.RedisError as error:
            raise QueueUnreachable(f"Redis is not reachable: {error}") from error

    def backlog(self, queue_name: str) -> int:
        """How many messages of a queue wait for a worker. Raises QueueUnreachable."""
        try:
            return int(self.client.llen(f"{self.namespace}:{queue_name}"))
        except redis.exceptions.RedisError as error:
            raise QueueUnreachable(f"Redis is not reachable: {error}") from error


def delayed(message: dramatiq.Message[Any], delay: timedelta) -> dramatiq.Message[Any]:
    """The same message, to be enqueued now and handled after ``delay``."""
    eta = current_millis() + int(delay / timedelta(milliseconds=1))
    return message.copy(queue_name=dq_name(message.queue_name), options={"eta": eta})


class _BlockingConsumer(_RedisConsumer):
    """Waits on the queue's list instead of sleeping: an idle worker starts a job within milliseconds.

    ``BLMOVE`` of the head onto itself returns as soon as there is a head, and changes nothing.
    """

    def __init__(self, broker: RelayBroker, queue_name: str, prefetch: int, timeout: int) -> None:
        super().__init__(broker, queue_name, prefetch, timeout)
        self._key = f"{broker.namespace}:{queue_name}"
        self._wait = _DELAY_WAIT if queue_name.endswith(".DQ") else _WAIT
        self._idle = 0

    def __next__(self) -> Any:
        # A full prefetch must not make the stock consumer sleep longer and longer.
        self.misses = 0
        if not self.message_cache and self.outstanding_message_count < self.prefetch and not self._head():
            self._idle += 1
            if self._idle % _UPKEEP:
                return None
        return super().__next__()

    def _head(self) -> bool:
        try:
            head = self.broker.client.blmove(self._key, self._key, self._wait, "LEFT", "LEFT")
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
            raise ConnectionClosed(error) from None
        return head is not None
