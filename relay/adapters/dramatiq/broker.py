"""Dramatiq on Redis, tuned for a relay: a wake-up and a thread pool, nothing more.

Redis holds ids and may lose all of them at any moment; the tables are the truth. Unlike the stock broker,
this one blocks instead of polling, enqueues a batch in one round trip, and divides a queue fairly among its shares
(`relay.adapters.dramatiq.shares`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
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

from relay.adapters.dramatiq.gates import QueueEntry
from relay.adapters.dramatiq.retries import shown
from relay.adapters.dramatiq.shares import DEFERRED, MARK, share_of
from relay.adapters.dramatiq.wakeup import WAKEUP_TIMES, Wakeups, WakeupTimes
from relay.adapters.redis_client import bounded_client, queue_error, reaching
from relay.domain.retry import Later

#: A command takes well under a millisecond, so all threads of a process share a few connections.
_MAX_CONNECTIONS: Final = 4
#: This many acknowledgements are sent together, or more if a part of the prefetch is more.
_BATCH_ACKS: Final = 16
#: The largest prefetch of a share, unless dramatiq's own is larger.
_MAX_PREFETCH: Final = 128
#: How often to look behind a share that has no capacity, in seconds. Messages of other shares wait no longer.
_LOOK_BEHIND_INTERVAL_S: Final = 0.05
#: How long a consumer without any capacity waits before it looks again, in seconds.
_CAPACITY_WAIT_S: Final = 0.005
#: The option that says when a message was put into its queue, in milliseconds by Redis' clock.
_ENQUEUED: Final = "relay_enqueued"
#: How often Redis' clock is read, in seconds. In between, this process's clock counts on.
_READ_INTERVAL_S: Final = 60.0
#: The most messages of a share in one fetch. Lua limits the number of arguments of a call.
_MAX_FETCH_MESSAGES: Final = 1_000
#: Fetches messages: first deferred ones, as far as their shares have capacity, then a limited number from the
#: queue. A message from the queue whose share has no capacity is deferred. Returns three values: whether the queue
#: may have more, whether any are deferred, and the messages. KEYS: the queue, the worker's unacknowledged
#: messages, the heartbeats of workers. ARGV: the time, the worker's id, the limit, the capacity of a share that is
#: not named; then each share and its capacity.
_FETCH: Final = """
redis.call("zadd", KEYS[3], ARGV[1], ARGV[2])
local queue, most, default, capacity, deferred = KEYS[1], tonumber(ARGV[3]), tonumber(ARGV[4]), {}, {}
for i = 5, #ARGV, 2 do capacity[ARGV[i]] = tonumber(ARGV[i + 1]) end
local messages = {}
local function fetch(ids)
    redis.call("sadd", KEYS[2], unpack(ids))
    for _, data in ipairs(redis.call("hmget", queue .. ".msgs", unpack(ids))) do
        if data then table.insert(messages, data) end
    end
end
for _, share in ipairs(redis.call("smembers", queue .. ".deferred")) do
    local list, free = queue .. ".deferred:" .. share, capacity[share] or default
    local ids = free > 0 and redis.call("lpop", list, free) or {}
    if ids and #ids > 0 then fetch(ids) end
    capacity[share] = free - (ids and #ids or 0)
    deferred[share] = redis.call("exists", list) == 1 or nil
    if not deferred[share] then redis.call("srem", queue .. ".deferred", share) end
end
local count, seen, more = 0, 0, 1
while more == 1 and count < most and seen < 1000 do
    local limit, ours, others = most - count, {}, {}
    local ids = redis.call("lpop", queue, limit) or {}
    if #ids < limit then more = 0 end
    seen = seen + #ids
    for _, id in ipairs(ids) do
        local share = string.match(id, "^([^|]*)|") or ""
        local free = capacity[share] or default
        if share ~= "" and (deferred[share] or free <= 0) then
            others[share] = others[share] or {}
            table.insert(others[share], id)
            deferred[share] = true
        else
            capacity[share] = free - 1
            table.insert(ours, id)
        end
    end
    for share, ids in pairs(others) do
        redis.call("sadd", queue .. ".deferred", share)
        redis.call("rpush", queue .. ".deferred:" .. share, unpack(ids))
    end
    if #ours > 0 then fetch(ours) end
    count = count + #ours
end
return {more, next(deferred) and 1 or 0, messages}
"""
#: Acknowledges messages as the broker's own script does: one that was given back meanwhile keeps its content.
_ACK: Final = """
for _, id in ipairs(ARGV) do
    if redis.call("srem", KEYS[1], id) > 0 then redis.call("hdel", KEYS[2], id) end
end
"""
#: Puts what a worker has fetched and not finished back into its queues. KEYS: in turn its unacknowledged messages
#: of a queue, and the queue.
_GIVE_BACK: Final = """
for i = 1, #KEYS, 2 do
    for _, id in ipairs(redis.call("smembers", KEYS[i])) do
        if redis.call("hexists", KEYS[i + 1] .. ".msgs", id) == 1 then redis.call("rpush", KEYS[i + 1], id) end
    end
    redis.call("del", KEYS[i])
end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTimes:
    """How long consumers wait, in seconds, and when they fetch more at once.

    ``idle``: a wait ends after this time, so that a worker can stop soon. ``busy``: the same while a share has no
    capacity and while delayed messages are held, which may start this late. ``upkeep_waits``: after so many idle
    waits a worker fetches anyway, and finds what a dead worker had deferred. ``often``: a share that is fetched
    again within this time gets twice the prefetch. ``seldom``: after this time it has dramatiq's own again.
    """

    idle: float = 2.0
    busy: float = 0.2
    upkeep_waits: int = 5
    often: float = 0.04
    seldom: float = 0.2


def create_broker(
    url: str,
    *,
    namespace: str,
    middleware: Sequence[Middleware],
    times: FetchTimes = FetchTimes(),
    wakeup_times: WakeupTimes = WAKEUP_TIMES,
    **access: Any,
) -> RelayBroker:
    """A broker on ``url``; all its keys start with ``namespace``. ``access`` goes to the client of Redis."""
    client, wakeups = bounded_client(url, _MAX_CONNECTIONS, **access), Wakeups(url, times=wakeup_times, **access)
    return RelayBroker(
        wakeups=wakeups, times=times, client=client, namespace=namespace, middleware=list(middleware)
    )


class RelayBroker(RedisBroker):
    """RedisBroker with a blocking wait on its queues, bulk enqueueing and bulk acknowledgements."""

    def __init__(self, *, wakeups: Wakeups, times: FetchTimes = FetchTimes(), **options: Any) -> None:
        super().__init__(**options)
        self.wakeups, self.times = wakeups, times
        self.unacknowledged: dict[str, list[str]] = {}
        self._ack_script = self.client.register_script(_ACK)
        self._fetch_script = self.client.register_script(_FETCH)
        self._give_back = self.client.register_script(_GIVE_BACK)
        self._clock = RedisClock(self.client)
        #: Set when this process is about to end: a job fetched now would wait for that.
        self.ending = threading.Event()

    @property
    def consumer_class(self) -> type[_RedisConsumer]:
        return _BlockingConsumer

    def enqueue_many(self, messages: Sequence[dramatiq.Message[Any]]) -> None:
        """Enqueue messages in one round trip. Raises QueueUnreachable; some may be enqueued even then."""
        with reaching():
            now = self._clock.now()
            with self.client.pipeline(transaction=False) as pipeline:
                for message in messages:
                    # The two writes of the broker's own enqueue script.
                    key, identity, data = self.entry(message, **{_ENQUEUED: now})
                    pipeline.hset(f"{key}.msgs", identity, data)
                    pipeline.rpush(key, identity)
                pipeline.execute()

    def entry(self, message: dramatiq.Message[Any], **options: Any) -> QueueEntry:
        """A message for its queue, under a new id that begins with its share. A gate stamps it with the time."""
        identity = f"{share_of(message)}{MARK}{uuid4()}"
        copy = message.copy(options={"redis_message_id": identity, _ENQUEUED: 0, **options})
        return QueueEntry(f"{self.namespace}:{message.queue_name}", identity, copy.encode())

    def fetch(self, queue_name: str, capacity: Capacity) -> tuple[bool, bool, list[bytes]]:
        """Fetch up to the capacity. Returns whether more may wait, whether any are deferred, and the messages."""
        free = capacity.free()
        most = max(free.values(), default=0) or min(capacity.least, _MAX_FETCH_MESSAGES)
        if self._should_do_maintenance("fetch"):
            # The broker's own fetch maintains its keys. It does not see deferred messages.
            messages = self.do_fetch(queue_name, most)
            return len(messages) >= most, True, messages
        space = self.namespace
        acks = f"{space}:__acks__.{self.broker_id}.{queue_name}"
        keys = [f"{space}:{queue_name}", acks, f"{space}:__heartbeats__"]
        start: list[str | int] = [current_millis(), self.broker_id, most, min(capacity.least, _MAX_FETCH_MESSAGES)]
        more, deferred, messages = self._fetch_script(
            keys=keys, args=[*start, *(it for pair in free.items() for it in pair)]
        )
        return bool(more), bool(deferred), messages

    def ack_many(self, queue_name: str, ids: Sequence[str]) -> None:
        """Acknowledge messages in one round trip, as the broker's own script does for a single one."""
        acks = f"{self.namespace}:__acks__.{self.broker_id}.{queue_name}"
        self._ack_script(keys=[acks, f"{self.namespace}:{queue_name}.msgs"], args=ids)

    def take_over(self, worker: str) -> None:
        """Give the unfinished jobs of a worker whose process is gone to others. Raises QueueUnreachable."""
        acks, space, names = f"__acks__.{worker}.", f"{self.namespace}:", [*self.queues, *self.delay_queues]
        with reaching():
            self._give_back(keys=[space + key for name in names for key in (acks + name, name)])

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Enqueue as the stock broker does, with the share in the id. Retries come this way."""
        if delay is not None:
            message = delayed(message, timedelta(milliseconds=delay))
        self.emit_before("enqueue", message, delay)
        entry = self.entry(message, **{_ENQUEUED: self._clock.now()})
        self.do_enqueue(message.queue_name, entry.id, entry.data)
        self.emit_after("enqueue", message, delay)
        return message

    def head_waits(self, queue_name: str, share: str = "") -> timedelta:
        """How long the oldest message of a share may have waited; zero when none waits. Raises QueueUnreachable.

        The queue and the list of deferred messages are first in, first out. So the heads of both are the oldest. A
        message without the time since when it waits does not count.
        """
        key = f"{self.namespace}:{queue_name}"
        with reaching():
            heads: list[Any] = [self.client.lindex(name, 0) for name in (key, f"{key}{DEFERRED}:{share}")]
            ids = [head for head in heads if head is not None]
            texts: list[Any] = self.client.hmget(f"{key}.msgs", ids) if ids else []
            now = self._clock.now()
        since = [dramatiq.Message.decode(text).options.get(_ENQUEUED) or now for text in texts if text is not None]
        return timedelta(milliseconds=max(0, now - min(since, default=now)))

    def backlog(self, queue_name: str, share: str = "") -> int:
        """How many messages wait in a queue, and deferred ones of a share. Raises QueueUnreachable."""
        key = f"{self.namespace}:{queue_name}"
        with reaching():
            return sum(int(self.client.llen(name)) for name in (key, f"{key}{DEFERRED}:{share}"))


def delayed(message: dramatiq.Message[Any], delay: timedelta) -> dramatiq.Message[Any]:
    """The same message, to be enqueued now and handled after ``delay``."""
    eta = current_millis() + int(delay / timedelta(milliseconds=1))
    # As after the retry middleware, for a row that was tried together with others.
    options = {"eta": eta, "traceback": shown(delay)} if isinstance(delay, Later) else {"eta": eta}
    return message.copy(queue_name=dq_name(message.queue_name), options=options)


class RedisClock:
    """Redis' clock. An age is a difference of this one clock, so the clocks of hosts need not agree."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._ahead = 0.0
        self._read_at = -_READ_INTERVAL_S

    def now(self) -> int:
        """The time in milliseconds, exact to a round trip. Raises RedisError if Redis does not answer."""
        if time.monotonic() - self._read_at >= _READ_INTERVAL_S:
            seconds, micros = self._client.time()
            self._read_at = time.monotonic()
            self._ahead = seconds + micros / 1e6 - self._read_at
        return int((time.monotonic() + self._ahead) * 1000)


@dataclass(slots=True)
class _Pace:
    """How many messages of a share a worker holds, and how many it may hold: more where messages are quick."""

    prefetch: int
    messages: int = 0
    fetched_at: float = 0.0

    @property
    def free(self) -> int:
        return self.prefetch - self.messages

    @property
    def part(self) -> int:
        """How many messages are fetched at once under full load."""
        return max(1, self.prefetch // 4)

    @property
    def full(self) -> bool:
        return self.free < self.part


class Capacity:
    """How many more messages of each share a worker has capacity for. Safe in any thread.

    A worker holds at most ``least`` messages of a share where messages are slow, ``most`` where they are quick.
    """

    def __init__(self, least: int, most: int, times: FetchTimes = FetchTimes()) -> None:
        self.least, self._most, self._times = least, most, times
        self._paces: dict[str, _Pace] = {}
        self._shares: dict[str, str] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._shares)

    def pace(self, share: str) -> _Pace:
        """The pace of a share: how many messages the worker holds, and its prefetch."""
        return self._paces.setdefault(share, _Pace(self.least))

    def add(self, id: str, share: str, now: float) -> None:
        """Note a message that was fetched at ``now``. A share that is fetched often gets a larger prefetch."""
        with self._lock:
            pace = self.pace(share)
            if now > pace.fetched_at:
                since, pace.fetched_at = now - pace.fetched_at, now
                if since < self._times.often:
                    pace.prefetch = min(self._most, 2 * pace.prefetch)
                elif since > self._times.seldom:
                    pace.prefetch = self.least
            pace.messages += 1
            self._shares[id] = share

    def release(self, id: str) -> bool:
        """Note that a message is finished. True when that frees capacity for others of its share."""
        with self._lock:
            share = self._shares.pop(id, None)
            if share is None:
                return False
            pace = self._paces[share]
            before, pace.messages = pace.full, pace.messages - 1
            return before and not pace.full

    def full(self) -> set[str]:
        """The shares that have no capacity."""
        with self._lock:
            return {share for share, pace in self._paces.items() if pace.full}

    def free(self) -> dict[str, int]:
        """The capacity of each share that holds messages or has a prefetch of its own."""
        with self._lock:
            return {
                share: 0 if pace.full else min(pace.free, _MAX_FETCH_MESSAGES)
                for share, pace in self._paces.items()
                if pace.messages or pace.prefetch != self.least
            }


class _BlockingConsumer(_RedisConsumer):
    """Waits for the queue's list instead of sleeping: an idle worker starts a job within milliseconds.

    `relay.adapters.dramatiq.wakeup` says when there may be something to fetch. A busy worker fetches when a part
    of its prefetch is free, not for each message, and acknowledges several at once. A message that a crash leaves
    unacknowledged is redelivered, and finds its row finished.
    """

    def __init__(self, broker: RelayBroker, queue_name: str, prefetch: int, timeout: int) -> None:
        super().__init__(broker, queue_name, prefetch, timeout)
        self._key = f"{broker.namespace}:{queue_name}"
        self._delays = queue_name.endswith(".DQ")
        self._times = broker.times
        self.capacity = Capacity(prefetch, max(prefetch, _MAX_PREFETCH), broker.times)
        self._fetched_at = 0.0
        self._idle = 0
        self._more = self._waiting = False
        # Not known yet: other workers may have deferred some.
        self._deferred = not self._delays
        #: The shares of the messages fetched last.
        self._came: set[str] = set()
        # Kept by the broker: after a lost connection another consumer takes over.
        self._done = broker.unacknowledged.setdefault(queue_name, [])
        self._lock = threading.Lock()
        self._freed = threading.Event()

    def __next__(self) -> Any:
        try:
            if not self.message_cache and not self._fill():
                return None
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
            raise ConnectionClosed(error) from None
        except redis.exceptions.NoPermissionError as error:
            # Handled as an outage: logged in one line and retried, as an operator may grant the permission.
            raise ConnectionClosed(queue_error(error)) from None
        message = super().__next__()
        if message is not None:
            share = self._share(message)
            self._came.add(share)
            self.capacity.add(message.options["redis_message_id"], share, self._fetched_at)
        return message

    def _share(self, message: Any) -> str:
        return "" if self._delays else share_of(message)

    def _fill(self) -> bool:
        """Fetch up to the capacity. False when there is no capacity or nothing to fetch."""
        self._flush()
        if self.broker.ending.is_set():
            self._freed.wait(self._times.busy)
            self._freed.clear()
            return False
        full = self.capacity.full()
        if "" in full:
            self._freed.wait(_CAPACITY_WAIT_S)
            self._freed.clear()
            return False
        # When no share of the last fetch has capacity left, a further fetch would only defer more messages.
        stuck = bool(self._came) and self._came <= full
        if ((stuck or not self._more) and not self._wait(full)) or self.broker.ending.is_set():
            return False
        self._freed.clear()
        self._fetched_at = time.monotonic()
        self._came.clear()
        if self._delays:
            limit = self.capacity.pace("").free
            self.message_cache = self.broker.do_fetch(self.queue_name, limit)
            # Fewer than the limit means that the queue is empty: there is no need to ask again at once.
            self._more = len(self.message_cache) >= limit
        else:
            self._more, self._deferred, self.message_cache = self.broker.fetch(self.queue_name, self.capacity)
        return bool(self.message_cache)

    def _wait(self, full: set[str]) -> bool:
        """Wait until there may be something to fetch."""
        if self._more or self._deferred:
            # The messages known to wait have no capacity. Messages behind them may have some.
            self._freed.wait(max(0.0, self._fetched_at + _LOOK_BEHIND_INTERVAL_S - time.monotonic()))
            return True
        if self._head(self._times.busy if full else self._times.idle):
            return True
        self._idle += 1
        return self._idle % self._times.upkeep_waits == 0

    def _head(self, wait: float) -> bool:
        """Wait for a head, or for capacity. While it waits, acknowledgements are sent at once."""
        self._waiting = True
        try:
            self._flush()
            wait = self._times.busy if self._delays and len(self.capacity) else wait
            return bool(self.broker.wakeups.wait(self._key, self._freed, wait))
        finally:
            self._waiting = False

    def ack(self, message: Any) -> None:
        """Note that a message is finished."""
        self._release(message)
        with self._lock:
            self._done.append(message.options["redis_message_id"])
            due = len(self._done) >= max(_BATCH_ACKS, self.capacity.pace(self._share(message)).part)
        if due or self._waiting:
            try:
                self._flush()
            except redis.exceptions.ConnectionError as error:
                raise ConnectionClosed(error) from None

    def nack(self, message: Any) -> None:
        """Move a message to the dead ones."""
        self._release(message)
        super().nack(message)

    def _release(self, message: Any) -> None:
        self.queued_message_ids.discard(message.message_id)
        if self.capacity.release(message.options["redis_message_id"]):
            self._freed.set()

    def close(self) -> None:
        """Acknowledge finished messages. Give back those that no thread has taken: dramatiq forgets them."""
        with suppress(redis.exceptions.RedisError):
            self._flush()
            self.requeue([dramatiq.Message.decode(data) for data in self.message_cache])
        self.broker.wakeups.leave(self._key)
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
