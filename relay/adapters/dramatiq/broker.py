"""Dramatiq on Redis, tuned for a relay: a wake-up and a thread pool, nothing more.

Redis holds ids and may lose all of them at any moment; the tables are the truth. Unlike the stock broker,
this one blocks instead of polling, enqueues a batch in one round trip, and divides a queue fairly among its shares
(`relay.adapters.dramatiq.shares`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast
from uuid import uuid4

import dramatiq
import redis
import redis.exceptions
from dramatiq.broker import MessageProxy
from dramatiq.brokers.redis import RedisBroker, _RedisConsumer
from dramatiq.common import current_millis, dq_name, q_name, xq_name
from dramatiq.errors import ConnectionClosed
from dramatiq.message import get_encoder
from dramatiq.middleware import Middleware, MiddlewareError
from dramatiq.middleware.threading import Interrupt

from relay.adapters.dramatiq import scripts
from relay.adapters.dramatiq.gates import QueueEntry
from relay.adapters.dramatiq.reading import read_job
from relay.adapters.dramatiq.retries import shown
from relay.adapters.dramatiq.shares import DEFERRED, MARK, share_of
from relay.adapters.dramatiq.wakeup import WAKEUP_TIMES, Wakeups, WakeupTimes
from relay.adapters.redis_client import bounded_client, queue_error, reaching
from relay.adapters.redis_keys import REPLACE, fleet_keys, queue_keys, wrong_type
from relay.domain.retry import Later

Answer = TypeVar("Answer")
#: A message as Redis holds it: its id there, and its text.
Fetched: TypeAlias = tuple[bytes, bytes]

_log = logging.getLogger("relay.redis")
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
#: The most messages that one command writes.
_MAX_WRITTEN_MESSAGES: Final = 1_000
#: The most messages of a share in one fetch. Lua limits the number of arguments of a call.
_MAX_FETCH_MESSAGES: Final = 1_000


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


class Here(Protocol):
    """What runs messages in this process."""

    def has_room(self, messages: Sequence[dramatiq.Message[Any]]) -> bool:
        """Whether it would begin all of them at once."""
        ...

    def begin(self, messages: Sequence[dramatiq.Message[Any]]) -> None:
        """Begin messages that Redis holds as fetched by this process."""
        ...


class RelayBroker(RedisBroker):
    """RedisBroker with a blocking wait on its queues, bulk enqueueing and bulk acknowledgements."""

    def __init__(self, *, wakeups: Wakeups, times: FetchTimes = FetchTimes(), **options: Any) -> None:
        #: For each signal the middleware that there was, and what of it does something.
        self._hooks: dict[str, tuple[list[Middleware], list[tuple[Middleware, Callable[..., Any]]]]] = {}
        super().__init__(**options)
        self.wakeups, self.times = wakeups, times
        #: For each queue the finished messages that Redis does not know of yet: Redis' id, and the message's own.
        self.unacknowledged: dict[str, dict[str, str]] = {}
        self._ack_script = self.client.register_script(scripts.ACK)
        self._fetch_script = self.client.register_script(scripts.FETCH)
        self._nack_script = self.client.register_script(scripts.NACK)
        self._give_back = self.client.register_script(scripts.GIVE_BACK)
        self._replace = self.client.register_script(REPLACE)
        self._clock = RedisClock(self.client)
        #: What takes messages without a detour, while this process runs a worker.
        self.here: Here | None = None
        #: Set when this process is about to end: a job fetched now would wait for that.
        self.ending = threading.Event()

    @property
    def consumer_class(self) -> type[_RedisConsumer]:
        return _BlockingConsumer

    def enqueue_many(self, messages: Sequence[dramatiq.Message[Any]]) -> None:
        """Enqueue messages in one round trip. Raises QueueUnreachable; some may be enqueued even then.

        A few that this process would begin at once it takes: Redis holds them as fetched by it. No other process
        is woken, and they begin without another round trip.
        """
        queues: dict[str, list[dramatiq.Message[Any]]] = {}
        for message in messages:
            queues.setdefault(message.queue_name, []).append(message)
        with reaching():
            now, here = self._clock.now(), self.here
            taken = here is not None and bool(messages) and here.has_room(messages)
            entries = self._entries(queues, now)
            if foreign := self._write(entries, taken=taken):
                self.replace_foreign(foreign)
                # Under new ids: a worker may have met the old ones without their content, and dropped them.
                self._write(self._entries({name: queues[name] for name in foreign}, now))
        if here is not None and taken:
            here.begin(
                [
                    message.copy(options={"redis_message_id": entry.id, _ENQUEUED: now})
                    for name, written in entries.items()
                    if name not in foreign
                    for message, entry in zip(queues[name], written, strict=True)
                ]
            )

    def _entries(
        self, queues: Mapping[str, Sequence[dramatiq.Message[Any]]], now: int
    ) -> dict[str, list[QueueEntry]]:
        return {name: [self.entry(it, **{_ENQUEUED: now}) for it in messages] for name, messages in queues.items()}

    def _write(self, entries: Mapping[str, Sequence[QueueEntry]], *, taken: bool = False) -> list[str]:
        """Write the entries of queues; returns which of these met a key of another type. Raises RedisError.

        ``taken``: as fetched by this process.
        """
        with self.client.pipeline(transaction=False) as pipeline:
            for name, written in entries.items():
                key = written[0].queue
                for first in range(0, len(written), _MAX_WRITTEN_MESSAGES):
                    part = written[first : first + _MAX_WRITTEN_MESSAGES]
                    ids = [entry.id for entry in part]
                    # The two writes of the broker's own enqueue script, or what remains of them after a fetch.
                    pipeline.hset(f"{key}.msgs", items=[it for entry in part for it in (entry.id, entry.data)])
                    if taken:
                        pipeline.sadd(self._acks(name), *ids)
                    else:
                        pipeline.rpush(key, *ids)
            answers = iter(pipeline.execute(raise_on_error=False))
        foreign = []
        for name, written in entries.items():
            commands = 2 * -(-len(written) // _MAX_WRITTEN_MESSAGES)
            errors = [it for it in islice(answers, commands) if isinstance(it, redis.exceptions.RedisError)]
            if errors and not all(map(wrong_type, errors)):
                raise errors[0]
            if errors:
                foreign.append(name)
                with suppress(redis.exceptions.ResponseError):
                    self.client.hdel(f"{written[0].queue}.msgs", *(entry.id for entry in written))
        return foreign

    def entry(self, message: dramatiq.Message[Any], **options: Any) -> QueueEntry:
        """A message for its queue, under a new id that begins with its share. A gate stamps it with the time."""
        identity = self._identity(message)
        known = {**message.options, "redis_message_id": identity, _ENQUEUED: 0, **options}
        # As `Message.encode` of a copy: a batch has hundreds of messages.
        data = get_encoder().encode({**vars(message), "options": known})
        return QueueEntry(f"{self.namespace}:{message.queue_name}", identity, data)

    @staticmethod
    def _identity(message: dramatiq.Message[Any]) -> str:
        return f"{share_of(message)}{MARK}{uuid4()}"

    def fetch(self, queue_name: str, capacity: Capacity) -> tuple[bool, bool, list[Fetched]]:
        """Fetch up to the capacity. Returns whether more may wait, whether any are deferred, and the messages."""
        free = capacity.free()
        least = min(capacity.least, _MAX_FETCH_MESSAGES)
        return self._fetch(queue_name, max(free.values(), default=0) or least, least, free)

    def fetch_delayed(self, queue_name: str, most: int) -> tuple[bool, list[Fetched]]:
        """Fetch from a queue of delayed messages, which has no shares. Returns whether more may wait."""
        most = min(most, _MAX_FETCH_MESSAGES)
        more, _, messages = self._fetch(queue_name, most, most, {})
        return more, messages

    def _fetch(
        self, queue_name: str, most: int, default: int, free: Mapping[str, int]
    ) -> tuple[bool, bool, list[Fetched]]:
        if self._should_do_maintenance("fetch"):
            self._maintain(queue_name)
        space, acks = self.namespace, self._acks(queue_name)
        keys = [f"{space}:{queue_name}", acks, f"{space}:__heartbeats__"]
        start: list[str | int] = [current_millis(), self.broker_id, most, default]
        more, deferred, found = self._fetch_script(
            keys=keys, args=[*start, *(it for pair in free.items() for it in pair)]
        )
        return bool(more), bool(deferred), list(zip(found[::2], found[1::2], strict=True))

    def _maintain(self, queue_name: str) -> None:
        """Let the broker's own script give back what dead workers had, and forget old dead messages."""
        ours = [self.broker_id, self.heartbeat_timeout, self.dead_message_ttl, 1, self._max_unpack_size()]
        script = self.scripts["dispatch"]
        # To requeue nothing is the command that does least besides.
        args = ["requeue", current_millis(), queue_name, *ours]
        self._surely([queue_name], lambda: script(keys=[self.namespace], args=args))

    def _dispatch(self, command: str) -> Callable[..., Any]:
        dispatch = super()._dispatch(command)
        return lambda queue_name, *args: self._surely([queue_name], lambda: dispatch(queue_name, *args))

    def _surely(self, queues: Iterable[str], step: Callable[[], Answer], lists: Iterable[str] = ()) -> Answer:
        """Do a step of these queues, and lists. If it meets keys of another type, replace them and do it again."""
        try:
            return step()
        except redis.exceptions.ResponseError as error:
            if not wrong_type(error):
                raise
        self.replace_foreign(queues, lists)
        return step()

    def replace_foreign(self, queues: Iterable[str], lists: Iterable[str] = ()) -> None:
        """Delete the keys of these queues, and lists, that hold another type of value than ours."""
        keys = {**fleet_keys(self.namespace), **dict.fromkeys(lists, "LLEN")}
        for queue in queues:
            keys |= queue_keys(self.namespace, q_name(queue), [self.broker_id])
        self._replace(keys=list(keys), args=list(keys.values()))

    def _acks(self, queue_name: str) -> str:
        return f"{self.namespace}:__acks__.{self.broker_id}.{queue_name}"

    def do_ack(self, queue_name: str, *ids: str) -> None:
        """Acknowledge messages in one round trip, as the broker's own script does for a single one."""
        self._ack_script(keys=[self._acks(queue_name), f"{self.namespace}:{queue_name}.msgs"], args=ids)

    def do_nack(self, queue_name: str, id: str | bytes) -> None:
        """Move a message to the dead ones."""
        key, dead = f"{self.namespace}:{queue_name}", f"{self.namespace}:{xq_name(queue_name)}"
        keys = [self._acks(queue_name), f"{key}.msgs", dead, f"{dead}.msgs"]
        self._nack_script(keys=keys, args=[current_millis(), id])

    def flush(self, queue_name: str) -> None:
        """Drop all messages from a queue, deferred ones too."""
        super().flush(queue_name)
        key = f"{self.namespace}:{queue_name}{DEFERRED}"
        shares = cast("set[bytes]", self.client.smembers(key))
        self.client.delete(key, *(f"{key}:{share.decode()}" for share in shares))

    def take_over(self, worker: str) -> None:
        """Give the unfinished jobs of a worker whose process is gone to others. Raises QueueUnreachable."""
        acks, space, names = f"__acks__.{worker}.", f"{self.namespace}:", [*self.queues, *self.delay_queues]
        with reaching():
            self._give_back(keys=[space + key for name in names for key in (acks + name, name)])

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Enqueue as the stock broker does, with the share in the id. Retries come this way."""
        if delay is not None:
            message = delayed(message, timedelta(milliseconds=delay))
        options = {"redis_message_id": self._identity(message), _ENQUEUED: self._clock.now()}
        message = message.copy(options=options)
        self.emit_before("enqueue", message, delay)
        self.do_enqueue(message.queue_name, message.options["redis_message_id"], message.encode())
        self.emit_after("enqueue", message, delay)
        return message

    def emit_before(self, signal: str, *args: Any, **options: Any) -> None:
        """Tell middleware, as the stock broker does. What it raises ends no thread of a worker."""
        for middleware, hook in self.hooks(f"before_{signal}"):
            self._tell(middleware, hook, (MiddlewareError, Interrupt), *args, **options)

    def emit_after(self, signal: str, *args: Any, **options: Any) -> None:
        """The same, the last one first."""
        for middleware, hook in reversed(self.hooks(f"after_{signal}")):
            self._tell(middleware, hook, (), *args, **options)

    def hooks(self, name: str) -> list[tuple[Middleware, Callable[..., Any]]]:
        """The middleware that does something at a signal, and what it does. At most signals most does nothing."""
        known, hooks = self._hooks.get(name, (None, []))
        if known != self.middleware:
            nothing = getattr(Middleware, name, None)
            found = [(it, getattr(it, name)) for it in self.middleware]
            hooks = [(it, hook) for it, hook in found if getattr(hook, "__func__", None) is not nothing]
            self._hooks[name] = list(self.middleware), hooks
        return hooks

    def _tell(
        self,
        middleware: Middleware,
        hook: Callable[..., Any],
        meant: tuple[type[BaseException], ...],
        *args: Any,
        **options: Any,
    ) -> None:
        try:
            hook(self, *args, **options)
        except meant:
            raise
        except BaseException as error:
            # In the main thread it may be a signal. No signal reaches the threads of a worker.
            if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                raise
            self.logger.critical("Unexpected failure in %s of %r.", hook.__name__, middleware, exc_info=error)

    def head_waits(self, queue_name: str, share: str = "") -> timedelta:
        """How long the oldest message of a share may have waited; zero when none waits. Raises QueueUnreachable.

        The queue and the list of deferred messages are first in, first out. So the heads of both are the oldest. A
        message without the time since when it waits does not count.
        """
        key = f"{self.namespace}:{queue_name}"
        lists = [key, f"{key}{DEFERRED}:{share}"]

        def heads() -> list[Any]:
            ids = [self.client.lindex(name, 0) for name in lists]
            known = [id for id in ids if id is not None]
            return cast("list[Any]", self.client.hmget(f"{key}.msgs", known)) if known else []

        with reaching():
            texts, now = self._surely([queue_name], heads, lists), self._clock.now()
        since = [_waiting_since(text, now) for text in texts if text is not None]
        return timedelta(milliseconds=now - min(since, default=now))

    def backlog(self, queue_name: str, share: str = "") -> int:
        """How many messages wait in a queue, and deferred ones of a share. Raises QueueUnreachable."""
        key = f"{self.namespace}:{queue_name}"
        lists = [key, f"{key}{DEFERRED}:{share}"]

        def count() -> int:
            return sum(int(self.client.llen(name)) for name in lists)

        with reaching():
            return self._surely([queue_name], count, lists)


def _waiting_since(text: Any, now: int) -> int:
    """When a message was put into its queue; ``now`` if it does not say so."""
    message = read_job(text)
    since = message.options.get(_ENQUEUED) if message is not None else None
    return since if isinstance(since, int) and 0 < since <= now else now


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
        self._done = broker.unacknowledged.setdefault(queue_name, {})
        self._lock = threading.Lock()
        self._freed = threading.Event()

    def __next__(self) -> Any:
        try:
            if not self.message_cache and not self._fill():
                return None
        except redis.exceptions.RedisError as error:
            # An outage, or something that an operator may mend: logged in one line, and tried again.
            raise ConnectionClosed(queue_error(error)) from None
        id, text = self.message_cache[0]
        job = read_job(text, id, self.queue_name)
        if job is None:
            self._refuse(id)
            return None
        del self.message_cache[0]
        message = MessageProxy(job)
        # The proxy asks its message for each of these a dozen times, by a call of Python.
        vars(message).update(vars(job))
        self.queued_message_ids.add(message.message_id)
        share = self._share(message)
        self._came.add(share)
        self.capacity.add(job.options["redis_message_id"], share, self._fetched_at)
        return message

    def adopt(self, message: MessageProxy) -> None:
        """Count a message as fetched now. Any thread may call this."""
        self.queued_message_ids.add(message.message_id)
        self.capacity.add(message.options["redis_message_id"], self._share(message), self._fetched_at)

    def _refuse(self, id: bytes) -> None:
        """Move a message that nobody can read to the dead ones."""
        with self._retried():
            self.broker.do_nack(self.queue_name, id)
        del self.message_cache[0]
        _log.error("queue %s: the job %r cannot be read, and is with the dead ones", self.queue_name, id)

    @contextmanager
    def _retried(self) -> Iterator[None]:
        """Let Dramatiq do a step again that Redis has not done."""
        try:
            yield
        except redis.exceptions.RedisError as error:
            raise ConnectionClosed(queue_error(error)) from None

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
            self._more, self.message_cache = self.broker.fetch_delayed(self.queue_name, limit)
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
        """Note that a message is finished. Raises ConnectionClosed: Dramatiq then tries again."""
        self._release(message)
        with self._lock:
            self._done[message.options["redis_message_id"]] = message.message_id
            due = len(self._done) >= max(_BATCH_ACKS, self.capacity.pace(self._share(message)).part)
        if due or self._waiting:
            with self._retried():
                self._flush()

    def nack(self, message: Any) -> None:
        """Move a message to the dead ones. Raises ConnectionClosed: Dramatiq then tries again."""
        try:
            with self._retried():
                self.broker.do_nack(self.queue_name, message.options["redis_message_id"])
        finally:
            self.queued_message_ids.discard(message.message_id)
            self._release(message)

    def _release(self, message: Any) -> None:
        if self.capacity.release(message.options["redis_message_id"]):
            self._freed.set()

    def requeue(self, messages: Any) -> None:
        """Put messages back into the queue."""
        self._requeue([message.options["redis_message_id"] for message in messages])

    def _requeue(self, ids: Sequence[str | bytes]) -> None:
        if ids:
            # Not after an error: half of them might be lost.
            self.broker.replace_foreign([self.queue_name])
            self.broker.do_requeue(self.queue_name, *ids)

    def close(self) -> None:
        """Acknowledge finished messages. Give back those that no thread has taken: dramatiq forgets them."""
        with suppress(redis.exceptions.RedisError):
            self._flush()
            self._requeue([id for id, _ in self.message_cache])
        self.broker.wakeups.leave(self._key)
        super().close()

    def _flush(self) -> None:
        with self._lock:
            done = dict(self._done)
            self._done.clear()
        if not done:
            return
        try:
            self.broker.do_ack(self.queue_name, *done)
        except BaseException:
            with self._lock:
                self._done.update(done)
            raise
        finally:
            self.queued_message_ids.difference_update(done.values())
