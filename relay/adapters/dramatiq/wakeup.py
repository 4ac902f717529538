"""One connection on which a process waits for all its queues: Redis says when one of them changes.

A wait on a queue's list would need a connection for each queue and each delay queue. With client tracking, Redis
notes which keys the connection has asked for, and says once when one of them changes. So an idle process asks
nothing, and hears of a job within milliseconds. The same is true for messages that other workers have deferred
(`relay.adapters.dramatiq.shares`).

If such a signal is lost, only time is lost: a consumer looks at its queue every 10 s in any case.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from relay.adapters.dramatiq.shares import DEFERRED
from relay.adapters.redis_client import bounded_client
from relay.concurrency import is_cancelled

#: In the list of questions, instead of a key: a heartbeat.
_PING: Final = ""

#: Without client tracking, each queue and each delay queue waits on a connection of its own.
_MAX_WAITING_CONNECTIONS: Final = 64

_log = logging.getLogger("relay.redis")


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeupTimes:
    """How the connection is watched, in seconds.

    ``ping_every``: how often it is tried while nothing happens. ``silence``: after so long without an answer it is
    lost. ``pause``: how soon after a loss a new one is made.
    """

    ping_every: float = 2.0
    silence: float = 5.0
    pause: float = 1.0


WAKEUP_TIMES: Final = WakeupTimes()


class Wakeups:
    """Waits for queues on a connection that begins with the first wait. ``access`` goes to the client of Redis.

    If the server or the user has no client tracking, each queue gets a waiting connection instead.
    """

    def __init__(self, url: str, *, times: WakeupTimes = WAKEUP_TIMES, **access: Any) -> None:
        self._times = times
        self._pool: Any = redis.asyncio.ConnectionPool.from_url(
            url,
            **access,
            socket_timeout=times.silence,
            socket_connect_timeout=2,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
        )
        # Whatever the URL says: with the older protocol Redis would not say what has changed.
        self._pool.connection_kwargs["protocol"] = 3
        self._waiting: Any = bounded_client(url, _MAX_WAITING_CONNECTIONS, **access)
        self._lock = threading.Lock()
        self._line: _Line | None = None
        self._refused = False
        self._rest_until = 0.0

    def wait(self, key: str, woken: threading.Event, seconds: float) -> bool:
        """Wait until a queue may hold something or the event is set; False when the time is over before.

        If the connection is lost, all callers look into their queues themselves, every second, until there is a
        new one.
        """
        if (rest := self._rest_until - time.monotonic()) > 0:
            woken.wait(min(seconds, rest))
            return True
        if not self._refused:
            line = self._watch(key, woken)
            happened = woken.wait(seconds)
            if line.error is None:
                return happened
            self._note(line)
            if not line.refused:
                return True
        if self._waiting.exists(f"{key}{DEFERRED}"):
            return True
        return self._waiting.blmove(key, key, seconds, "LEFT", "LEFT") is not None or woken.is_set()

    def leave(self, key: str) -> None:
        """Stop waiting for a list. The connection ends with the last list."""
        with self._lock:
            if self._line is not None and not self._line.leave(key):
                self._line = None

    def _note(self, line: _Line) -> None:
        """Say once why a connection has ended."""
        with self._lock:
            if self._line is not line:
                return
            self._line = None
            self._refused = line.refused
            if not line.refused:
                self._rest_until = time.monotonic() + self._times.pause
        if line.refused:
            _log.warning("each queue waits on a connection of its own, as Redis refuses: %s", line.error)
        else:
            _log.warning("the connection that waits for jobs is lost: %s", line.error)

    def _watch(self, key: str, woken: threading.Event) -> _Line:
        with self._lock:
            if self._line is None:
                self._line = _Line(self._pool.make_connection(), self._times)
                self._line.start()
            self._line.watch(key, woken)
            return self._line


class _Line(threading.Thread):
    """The connection, and a thread with an event loop that talks on it. It ends with the first error."""

    def __init__(self, connection: Any, times: WakeupTimes) -> None:
        super().__init__(name="redis-wakeup", daemon=True)
        self._connection, self._times = connection, times
        self._loop = asyncio.new_event_loop()
        self._questions: asyncio.Queue[str] = asyncio.Queue()
        self._unanswered: deque[str] = deque()
        #: The queues that were empty when Redis was asked, and that have not changed since.
        self._quiet: set[str] = set()
        self._watched: dict[str, threading.Event] = {}
        self.error: redis.exceptions.RedisError | None = None
        #: Whether the server does not know client tracking, or does not let this user have it.
        self.refused = False

    def watch(self, key: str, woken: threading.Event) -> None:
        """Set the event as soon as a list holds something, or when the connection is lost."""
        self._watched[key] = woken
        if self.error is not None:
            woken.set()
        elif key not in self._quiet:
            self._ask(key)

    def leave(self, key: str) -> bool:
        """Stop watching a list; returns whether others are left. If none is left, the connection ends."""
        self._watched.pop(key, None)
        if not self._watched:
            self.error = redis.exceptions.ConnectionError("nobody waits any more")
            self._ask(_PING)
        return bool(self._watched)

    def run(self) -> None:
        """Serve until the connection is lost or no queue waits any more."""
        try:
            self._loop.run_until_complete(self._talk())
        except redis.exceptions.RedisError as error:
            self.error = error
        except Exception as error:
            self.error = redis.exceptions.ConnectionError(str(error))
        finally:
            self._loop.close()
            self._wake(list(self._watched))

    def _ask(self, key: str) -> None:
        # The loop may have ended: then `error` says so.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._questions.put_nowait, key)

    async def _talk(self) -> None:
        try:
            await self._begin()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen())
                group.create_task(self._send())
                group.create_task(self._ping())
        except* redis.exceptions.RedisError as errors:
            self.error = self.error or _first(errors)
        finally:
            await self._connection.disconnect(nowait=True)

    async def _begin(self) -> None:
        try:
            await self._connection.connect()
            # Only the parser takes a handler; redis-py's own cache of answers sets it in this way.
            self._connection._parser.set_invalidation_push_handler(self._changed)  # noqa: SLF001
            await self._connection.send_command("CLIENT", "TRACKING", "ON")
            await self._connection.read_response()
        except redis.exceptions.ResponseError:
            # The server answers, and the credentials are good: bad ones raise an error of another kind.
            self.refused = True
            raise

    async def _listen(self) -> None:
        silent = 0
        while self.error is None:
            # In two steps: after a pause of this process the time may be over although the answer has arrived.
            answer = await self._connection.read_response(timeout=self._times.silence / 2)
            silent = silent + 1 if answer is None else 0
            if silent == 2:
                raise redis.exceptions.TimeoutError(f"no answer within {self._times.silence:g} s")
            if answer is not None:
                self._on_answer(self._unanswered.popleft(), answer)
        raise self.error

    def _on_answer(self, key: str, lists: Any) -> None:
        if key and lists:
            self._wake([key])
        elif key:
            self._quiet.add(key)

    async def _send(self) -> None:
        while not is_cancelled():
            key = await self._questions.get()
            self._unanswered.append(key)
            await self._connection.send_command(*(["EXISTS", key, f"{key}{DEFERRED}"] if key else ["PING"]))

    async def _ping(self) -> None:
        while not is_cancelled():
            await asyncio.sleep(self._times.ping_every)
            self._questions.put_nowait(_PING)

    async def _changed(self, push: Sequence[Any]) -> None:
        """Take note of an invalidation: its keys, or all keys (None) when Redis was flushed."""
        if push[1] is None:
            self._quiet.clear()
            self._wake([*self._watched])
        else:
            keys = [key.decode().removesuffix(DEFERRED) for key in push[1]]
            self._quiet.difference_update(keys)
            self._wake(keys)

    def _wake(self, keys: Sequence[str]) -> None:
        for key in keys:
            if (woken := self._watched.get(key)) is not None:
                woken.set()


def _first(errors: BaseExceptionGroup[redis.exceptions.RedisError]) -> redis.exceptions.RedisError:
    first: Any = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    assert isinstance(first, redis.exceptions.RedisError)
    return first
