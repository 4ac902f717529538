"""Dramatiq on Redis, tuned for a relay: a wake-up and a thread pool, nothing more.

Redis holds ids and may lose all of them at any moment; the tables are the truth. Against the stock
broker this one waits blockingly instead of polling, and enqueues a batch in one round trip.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
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

from relay.adapters.gate import Entry
from relay.domain.errors import QueueUnreachable

#: A blocking wait ends after this long, so that a stopping worker is not held up, in seconds.
_WAIT: Final = 2.0
#: The same while a delay queue has given out messages, as the wait then bounds how late they start.
_DELAY_WAIT: Final = 0.2
#: So many acknowledgements are sent together at most.
_ACKS: Final = 16
#: A consumer that fetches more often than this, in seconds, fetches more at a time, and so many ahead at most.
_OFTEN: Final = 0.04
_MOST: Final = 128
#: One that fetches less often fetches no more ahead than dramatiq has told it to.
_SELDOM: Final = 0.2
#: While a worker is busy they wait for each other this long at most, in seconds.
_ROOM_WAIT: Final = 0.005
#: As the broker's own: what was given back to the queue meanwhile keeps its content.
_ACK: Final = """
for _, id in ipairs(ARGV) do
    if redis.call("srem", KEYS[1], id) > 0 then redis.call("hdel", KEYS[2], id) end
end
"""
#: Every so many idle waits the broker's own fetch runs, which does the upkeep of its keys.
_UPKEEP: Final = 15
#: The option that says when a message was put into its queue, in milliseconds by Redis' clock.
_ENQUEUED: Final = "relay_enqueued"
#: How long the clock of this process runs on after Redis' own before that is asked again, in seconds.
_ASK: Final = 60.0


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


class _Clock:
    """Redis' clock: an age is a difference of this one clock, whatever the clocks of two hosts show."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._ahead = 0.0
        self._asked = -_ASK

    def now(self) -> int:
        """Milliseconds, right to within a round trip. Raises RedisError, once a minute at most."""
        if time.monotonic() - self._asked >= _ASK:
            seconds, micros = self._client.time()
            self._asked = time.monotonic()
            self._ahead = seconds + micros / 1e6 - self._asked
        return int((time.monotonic() + self._ahead) * 1000)


class RelayBroker(RedisBroker):
    """RedisBroker with a blocking wait on its queues, bulk enqueueing and bulk acknowledgements."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.unacknowledged: dict[str, list[str]] = {}
        self._ack_script = self.client.register_script(_ACK)
        self._clock = _Clock(self.client)

    @property
    def consumer_class(self) -> type[_RedisConsumer]:
        return _BlockingConsumer

    def enqueue_many(self, messages: Sequence[dramatiq.Message[Any]]) -> None:
        """Enqueue messages in one round trip. Raises QueueUnreachable; some may be enqueued even then."""
        try:
            now = self._clock.now()
            with self.client.pipeline(transaction=False) as pipeline:
                for message in messages:
                    # The two writes of the broker's own enqueue script.
                    key, identity, data = self.entry(message, **{_ENQUEUED: now})
                    pipeline.hset(f"{key}.msgs", identity, data)
                    pipeline.rpush(key, identity)
                pipeline.execute()
        except redis.exceptions.RedisError as error:
            raise QueueUnreachable(f"Redis is not reachable: {error}") from error

    def entry(self, message: dramatiq.Message[Any], **options: Any) -> Entry:
        """A message as it goes into its queue, under a fresh id as the stock broker does it."""
        identity = str(uuid4())
        copy = message.copy(options={"redis_message_id": identity, **options})
        return Entry(f"{self.namespace}:{message.queue_name}", identity, copy.encode())

    def ack_many(self, queue_name: str, ids: Sequence[str]) -> None:
        """Acknowledge messages in one round trip, as the broker's own script does it with one."""
        acks = f"{self.namespace}:__acks__.{self.broker_id}.{queue_name}"
        self._ack_script(keys=[acks, f"{self.namespace}:{queue_name}.msgs"], args=ids)

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Enqueue as the stock broker does: retries come this way."""
        return super().enqueue(message.copy(options={_ENQUEUED: self._clock.now()}), delay=delay)

    def head_waits(self, queue_name: str) -> timedelta:
        """How long the message at the head of a queue has waited; zero when none waits, or when it does not say.

        A queue is first in, first out: what was put into it before its head is not in it any more. Raises
        QueueUnreachable.
        """
        key = f"{self.namespace}:{queue_name}"
        try:
            identity: Any = self.client.lindex(key, 0)
            text: Any = None if identity is None else self.client.hget(f"{key}.msgs", identity)
            now = self._clock.now()
        except redis.exceptions.RedisError as error:
            raise QueueUnreachable(f"Redis is not reachable: {error}") from error
        if text is None:
            return timedelta(0)
        return timedelta(milliseconds=max(0, now - dramatiq.Message.decode(text).options.get(_ENQUEUED, now)))

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

    ``BLMOVE`` of the head onto itself returns as soon as there is a head, and changes nothing. A busy worker
    fetches when a part of its prefetch is free, not for each message, and acknowledges several at once: what
    a crash leaves unacknowledged comes again, and finds its row finished.
    """

    def __init__(self, broker: RelayBroker, queue_name: str, prefetch: int, timeout: int) -> None:
        super().__init__(broker, queue_name, prefetch, timeout)
        self._key = f"{broker.namespace}:{queue_name}"
        self._delays = queue_name.endswith(".DQ")
        self._least, self._most = prefetch, max(prefetch, _MOST)
        self._fetched_at = 0.0
        self._idle = 0
        self._busy = self._waiting = False
        # Kept by the broker: a consumer that lost its connection is followed by another.
        self._done = broker.unacknowledged.setdefault(queue_name, [])
        self._lock = threading.Lock()
        self._room = threading.Event()

    def __next__(self) -> Any:
        try:
            if not self.message_cache and not self._fill():
                return None
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
            raise ConnectionClosed(error) from None
        return super().__next__()

    def _fill(self) -> bool:
        """Fetch what there is room for; False when there is none, or nothing to fetch."""
        self._flush()
        if self._free() < self._part:
            self._room.wait(_ROOM_WAIT)
            self._room.clear()
            return False
        if not self._busy and not self._head():
            self._idle += 1
            if self._idle % _UPKEEP:
                return False
        self._adapt()
        room = self._free()
        self.message_cache = self.broker.do_fetch(self.queue_name, room)
        # Fewer than there was room for were all: to ask for more at once would be in vain.
        self._busy = len(self.message_cache) >= room
        return bool(self.message_cache)

    def _adapt(self) -> None:
        """Fetch more ahead where messages are quick, and no more than a moment's work: others may be idle."""
        now = time.monotonic()
        since, self._fetched_at = now - self._fetched_at, now
        if since < _OFTEN:
            self.prefetch = min(self._most, 2 * self.prefetch)
        elif since > _SELDOM:
            self.prefetch = self._least

    @property
    def _part(self) -> int:
        """How many are fetched at once when there is as much to do as can be."""
        return int(max(1, self.prefetch // 4))

    def _free(self) -> int:
        return int(self.prefetch - self.outstanding_message_count)

    def _head(self) -> bool:
        """Wait for a head. Acknowledgements do not wait meanwhile."""
        self._waiting = True
        try:
            self._flush()
            wait = _DELAY_WAIT if self._delays and self.outstanding_message_count else _WAIT
            return self.broker.client.blmove(self._key, self._key, wait, "LEFT", "LEFT") is not None
        finally:
            self._waiting = False

    def ack(self, message: Any) -> None:
        """Note that a message is done with."""
        with self._lock:
            self._done.append(message.options["redis_message_id"])
            due = len(self._done) >= max(_ACKS, self._part)
        self.queued_message_ids.discard(message.message_id)
        if self._free() >= self._part:
            self._room.set()
        if due or self._waiting:
            try:
                self._flush()
            except redis.exceptions.ConnectionError as error:
                raise ConnectionClosed(error) from None

    def close(self) -> None:
        """Acknowledge what is done with."""
        with suppress(redis.exceptions.RedisError):
            self._flush()
        super().close()

    def _flush(self) -> None:
        with self._lock:
            done = self._done[:]
            self._done.clear()
        if not done:
            return
        try:
            self.broker.ack_many(self.queue_name, done)
        except redis.exceptions.RedisError:
            with self._lock:
                self._done[:0] = done
            raise
