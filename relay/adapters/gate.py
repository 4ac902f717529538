"""Gates: at most one job outstanding per duty, so that ticks never pile up (DESIGN §5).

A gate is a Redis key that expires. Losing it is harmless: two jobs of one duty never do the same work
twice, as the tables' locks decide; the gate only saves the second one the trouble.
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

from relay.cancellation import is_cancelled
from relay.domain.errors import QueueUnreachable

#: A job that died frees its gate within this time, whatever it was at; one that runs renews it in time.
TTL: Final = timedelta(seconds=6)
#: The longest back-off of a job that waits for a server. Nothing renews its gate meanwhile, as whoever holds the
#: job may die and Redis may lose it: so it is back before the gate opens by itself.
LONGEST_BACKOFF: Final = timedelta(seconds=4)
#: What stands behind the token of a job in back-off.
_WAITS: Final = ":waits"
#: What a gate does it does in one step: nothing comes in between, and an idle fleet does little else.
_OPEN: Final = """
if ARGV[3] == "force" then redis.call("set", KEYS[1], ARGV[1], "PX", ARGV[2])
elseif not redis.call("set", KEYS[1], ARGV[1], "NX", "PX", ARGV[2]) then return 0 end
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
if redis.call("get", KEYS[1]) == ARGV[1] then redis.call("del", KEYS[1]) end
"""
_WAKE: Final = """
for _, key in ipairs(KEYS) do
    local holder = redis.call("get", key)
    if holder and string.sub(holder, -#ARGV[1]) == ARGV[1] then redis.call("del", key) end
end
"""


class Entry(NamedTuple):
    """A message as it lies in its queue: the key of the queue, and under which id what the message is."""

    queue: str
    id: str
    data: bytes


def queue_error(error: redis.exceptions.RedisError) -> QueueUnreachable:
    """Say whether Redis is away, or answers and refuses. What it says holds no secret."""
    match error:
        case redis.exceptions.NoPermissionError():
            return QueueUnreachable(f"Redis refuses this user: {error}", hint="grant it: see ACL LOG")
        case redis.exceptions.AuthenticationError() | redis.exceptions.AuthorizationError():
            return QueueUnreachable(f"Redis refuses the credentials: {error}", hint="see [redis] and redis_url")
        case _ if "SSL" in str(error) or "certificate" in str(error):
            return QueueUnreachable(f"Redis: no TLS connection: {error}", hint="see [redis]")
    return QueueUnreachable(f"Redis is not reachable: {error}")


class Gates:
    """The gates of one Redis namespace. ``access`` goes to the client of Redis."""

    def __init__(self, url: str, namespace: str, **access: Any) -> None:
        self._namespace = namespace
        self._client: Any = redis.asyncio.Redis.from_url(
            url,
            **access,
            socket_timeout=2,
            socket_connect_timeout=2,
            decode_responses=True,
            retry=Retry(NoBackoff(), 1),
        )
        scripts = map(self._client.register_script, (_OPEN, _RENEW, _CLOSE, _WAKE))
        self._open, self._extend, self._close, self._wake = scripts

    async def open(
        self, duty: str, *, force: bool = False, send: Callable[[str], Entry] | None = None
    ) -> str | None:
        """Open the gate for a new job; returns its token, or None when a job is outstanding.

        ``force`` takes the gate over: the job that had it finds its token gone and ends. ``send`` makes the job's
        message of the token; it is in its queue when the gate is open. Raises QueueUnreachable.
        """
        token = uuid4().hex
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
    async def hold(self, duty: str, token: str) -> AsyncIterator[bool]:
        """Hold the gate while a job runs; yields False when another job has taken it over.

        An outage of Redis lets the job run: it is the tables that keep two jobs apart.
        """
        if not await self._renew(duty, token):
            yield False
            return
        keeper = asyncio.create_task(self._keep(duty, token))
        try:
            yield True
        finally:
            keeper.cancel()
            # What is on its way to Redis must not shut the gate again behind us.
            await asyncio.gather(keeper, return_exceptions=True)

    async def close(self, duty: str, token: str) -> None:
        """The job is done: the next tick may start another."""
        await self._quietly(self._close(keys=[self._key(duty)], args=[token]))

    async def back_off(self, duty: str, token: str) -> None:
        """The job waits for a server and comes back within LONGEST_BACKOFF: keep ticks from starting others."""
        await self._renew(duty, token, _WAITS)

    async def wake(self, duties: Sequence[str]) -> None:
        """A server is back: open the gates of jobs in back-off, so that the next tick starts others instead."""
        if duties:
            await self._quietly(self._wake(keys=[self._key(duty) for duty in duties], args=[_WAITS]))

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        await self._quietly(self._client.aclose())

    async def _keep(self, duty: str, token: str) -> None:
        while not is_cancelled():
            await asyncio.sleep(TTL.total_seconds() / 3)
            await self._renew(duty, token)

    async def _renew(self, duty: str, token: str, state: str = "") -> bool:
        """Extend the gate, or take it when nobody has it. False only when another job has it."""
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
