"""Gates: at most one job outstanding per duty, so that ticks never pile up (DESIGN §5).

A gate is a Redis key that expires. Losing it is harmless: the locks of the tables keep two jobs of one duty from
doing the same work twice. The gate only avoids the cost of a second job.

A duty with an interval is closed for that long when it is done: its gate says so until the next run is due. So
when such a duty has no gate, its job is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import uuid4

import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from relay.concurrency import is_cancelled
from relay.domain.errors import QueueUnreachable

#: How long a gate lives. A running job renews it in time; the gate of a dead job expires.
TTL: Final = timedelta(seconds=6)
#: The longest back-off of a job that waits for a server. Nothing renews its gate meanwhile: its worker may die, or
#: Redis may lose the job. So the job is back before the gate expires.
LONGEST_BACKOFF: Final = timedelta(seconds=4)
#: A step takes well under a millisecond, so the ticks of many contexts can share a few connections.
_MAX_CONNECTIONS: Final = 4
#: How long a step may wait for a connection, in seconds. Only an outage takes so long.
CONNECTION_WAIT_S: Final = 5.0
#: The suffix of the token of a job in back-off.
_WAITS: Final = ":waits"
#: Each script is one atomic step and one round trip, as an idle fleet does little else. The gate of a duty
#: that is done holds "done" until its next run, in place of a token.
_OPEN: Final = """
if not redis.call("set", KEYS[1], ARGV[1], "NX", "PX", ARGV[2]) then
    if ARGV[3] ~= "force" and redis.call("get", KEYS[1]) ~= "done" then return 0 end
    redis.call("set", KEYS[1], ARGV[1], "PX", ARGV[2])
end
if KEYS[2] then
    redis.call("hset", KEYS[2] .. ".msgs", ARGV[4], ARGV[5])
    redis.call("rpush", KEYS[2], ARGV[4])
end
return 1
"""
_RENEW: Final = """
local holder = redis.call("get", KEYS[1])
if holder and holder ~= ARGV[1] and holder ~= ARGV[1] .. ARGV[3] then return 0 end
redis.call("set", KEYS[1], ARGV[4], "PX", ARGV[2])
return 1
"""
_CLOSE: Final = """
if redis.call("get", KEYS[1]) ~= ARGV[1] then return end
if ARGV[2] == "0" then redis.call("del", KEYS[1])
else redis.call("set", KEYS[1], "done", "PX", ARGV[2]) end
"""
_WAKE: Final = """
for _, key in ipairs(KEYS) do
    local holder = redis.call("get", key)
    if holder and string.sub(holder, -#ARGV[1]) == ARGV[1] then redis.call("del", key) end
end
"""


class Entry(NamedTuple):
    """A message as it lies in its queue: the key of the queue, the id, and the encoded message."""

    queue: str
    id: str
    data: bytes


def queue_error(error: redis.exceptions.RedisError) -> QueueUnreachable:
    """Say whether Redis is away, or answers and refuses. The text of its error holds no secret."""
    match error:
        case redis.exceptions.NoPermissionError():
            return QueueUnreachable(f"Redis refuses this user: {error}", hint="grant it: see ACL LOG")
        case redis.exceptions.AuthenticationError() | redis.exceptions.AuthorizationError():
            return QueueUnreachable(f"Redis refuses the credentials: {error}", hint="see [redis] and redis_url")
        case _ if "SSL" in str(error) or "certificate" in str(error):
            return QueueUnreachable(f"Redis: no TLS connection: {error}", hint="see [redis]")
    return QueueUnreachable(f"Redis is not reachable: {error}")


class Hold:
    """Whether a running job still has its gate. True until a renewal finds that another job has taken it over."""

    __slots__ = ("_ours",)

    def __init__(self, ours: bool) -> None:
        self._ours = ours

    def __bool__(self) -> bool:
        return self._ours

    def lose(self) -> None:
        """Another job has the gate."""
        self._ours = False


class Gates:
    """The gates of one Redis namespace. ``access`` goes to the client of Redis."""

    def __init__(self, url: str, namespace: str, **access: Any) -> None:
        self._namespace = namespace
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            **access,
            max_connections=_MAX_CONNECTIONS,
            timeout=CONNECTION_WAIT_S,
            socket_timeout=2,
            socket_connect_timeout=2,
            decode_responses=True,
            retry=Retry(NoBackoff(), 1),
        )
        self._client: Any = redis.asyncio.Redis.from_pool(pool)
        scripts = map(self._client.register_script, (_OPEN, _RENEW, _CLOSE, _WAKE))
        self._open, self._extend, self._close, self._wake = scripts

    async def open(
        self,
        duty: str,
        *,
        force: bool = False,
        interval: timedelta = timedelta(),
        send: Callable[[str], Entry] | None = None,
    ) -> str | None:
        """Open the gate for a new job; returns its token, or None when a job is outstanding.

        ``force`` takes the gate over: the job that had it finds another token and ends. ``interval``: how long the
        duty counts as done afterwards (`lost`). ``send`` makes the job's message from the token; the same step
        puts it into its queue. Raises QueueUnreachable.
        """
        token = f"{uuid4().hex}:{_ms(interval)}"
        keys: list[str] = [self._key(duty)]
        args: list[str | int | bytes] = [token, _ms(TTL), "force" if force else ""]
        if send is not None:
            entry = send(token)
            keys.append(entry.queue)
            args += [entry.id, entry.data]
        try:
            opened = await self._open(keys=keys, args=args)
        except redis.exceptions.RedisError as error:
            raise queue_error(error) from error
        return token if opened else None

    @asynccontextmanager
    async def hold(self, duty: str, token: str) -> AsyncIterator[Hold]:
        """Hold the gate while a job runs. The hold is false when another job has taken over, or has done the duty.

        It may become false while the job runs: a gate can expire while Redis is frozen, and the next tick sends
        another job. That job may wait for the thread of this one. So a job that runs long asks its hold, and ends.
        During an outage of Redis the job runs on: the tables keep two jobs apart.
        """
        hold = Hold(await self._renew(duty, token))
        if not hold:
            yield hold
            return
        keeper = asyncio.create_task(self._keep(duty, token, hold))
        try:
            yield hold
        finally:
            keeper.cancel()
            # A renewal that is under way must not take the gate again after we have closed it.
            await asyncio.gather(keeper, return_exceptions=True)

    async def close(self, duty: str, token: str, *, well: bool = True) -> None:
        """The job has ended: the next tick may start another. A job that did not end well waits only briefly."""
        interval = int(token.partition(":")[2] or 0)
        if not well:
            interval = min(interval, _ms(LONGEST_BACKOFF))
        await self._quietly(self._close(keys=[self._key(duty)], args=[token, interval]))

    async def lost(self, duties: Sequence[str]) -> list[str]:
        """Return the duties that are not done and have no job outstanding; none if Redis does not answer."""
        pipeline = self._client.pipeline(transaction=False)
        for duty in duties:
            pipeline.exists(self._key(duty))
        known = await self._quietly(pipeline.execute())
        return [duty for duty, is_known in zip(duties, known or duties, strict=True) if not is_known]

    async def back_off(self, duty: str, token: str) -> None:
        """The job waits for a server and comes back within LONGEST_BACKOFF: keep ticks from starting others."""
        await self._renew(duty, token, _WAITS)

    async def wake(self, duties: Sequence[str]) -> None:
        """A server is back: open the gates of jobs in back-off, so that the next tick starts new jobs."""
        if duties:
            await self._quietly(self._wake(keys=[self._key(duty) for duty in duties], args=[_WAITS]))

    @property
    def client(self) -> Any:
        """The client, for others that use the same connections."""
        return self._client

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        await self._quietly(self._client.aclose())

    async def _keep(self, duty: str, token: str, hold: Hold) -> None:
        while hold and not is_cancelled():
            await asyncio.sleep(TTL.total_seconds() / 3)
            if not await self._renew(duty, token):
                hold.lose()

    async def _renew(self, duty: str, token: str, state: str = "") -> bool:
        """Extend the gate, or take it when no job has it. False only when another job has it."""
        args: list[str | int] = [token, _ms(TTL), _WAITS, token + state]
        kept = await self._quietly(self._extend(keys=[self._key(duty)], args=args))
        return kept is None or bool(kept)

    async def _quietly(self, command: Any) -> Any:
        try:
            return await command
        except redis.exceptions.RedisError:
            return None

    def _key(self, duty: str) -> str:
        return f"{self._namespace}:gate:{duty}"


def _ms(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
