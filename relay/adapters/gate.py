"""Gates: at most one job outstanding per duty, so that ticks never pile up (DESIGN §5).

A gate is a Redis key that expires. Losing it is harmless: two jobs of one duty never do the same work
twice, as the tables' locks decide; the gate only saves the second one the trouble.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from relay.domain.errors import QueueUnreachable

#: A job that died frees its gate within this time; a living one renews it three times as often.
TTL: Final = timedelta(seconds=6)
#: A job that waits for a server to return keeps its gate for longer than its longest back-off.
BACKOFF_TTL: Final = timedelta(seconds=75)


class Gates:
    """The gates of one Redis namespace."""

    def __init__(self, url: str, namespace: str) -> None:
        self._namespace = namespace
        self._client: Any = redis.asyncio.Redis.from_url(
            url,
            socket_timeout=2,
            socket_connect_timeout=2,
            decode_responses=True,
            retry=Retry(NoBackoff(), 1),
        )

    async def open(self, duty: str, *, force: bool = False) -> str | None:
        """Open the gate for a new job; returns its token, or None when a job is outstanding.

        ``force`` takes the gate over: the job that had it finds its token gone and ends. Raises
        QueueUnreachable.
        """
        token = uuid4().hex
        try:
            opened = await self._client.set(self._key(duty), token, nx=not force, px=_ms(TTL))
        except redis.exceptions.RedisError as error:
            raise QueueUnreachable(f"Redis is not reachable: {error}") from error
        return token if opened else None

    @asynccontextmanager
    async def hold(self, duty: str, token: str) -> AsyncIterator[bool]:
        """Hold the gate while a job runs; yields False when another job has taken it over.

        An outage of Redis lets the job run: it is the tables that keep two jobs apart.
        """
        if not await self._renew(duty, token, TTL):
            yield False
            return
        keeper = asyncio.create_task(self._keep(duty, token))
        try:
            yield True
        finally:
            keeper.cancel()

    async def close(self, duty: str, token: str) -> None:
        """The job is done: the next tick may start another."""
        if await self._is(duty, token):
            await self._quietly(self._client.delete(self._key(duty)))

    async def back_off(self, duty: str, token: str) -> None:
        """The job waits for a server and comes back by itself: keep ticks from starting others."""
        await self._renew(duty, token, BACKOFF_TTL)

    async def aclose(self) -> None:
        """Close the connections to Redis."""
        await self._quietly(self._client.aclose())

    async def _keep(self, duty: str, token: str) -> None:
        while True:
            await asyncio.sleep(TTL.total_seconds() / 3)
            await self._renew(duty, token, TTL)

    async def _renew(self, duty: str, token: str, ttl: timedelta) -> bool:
        """Extend the gate, or take it when nobody has it. False only when another job has it."""
        if not await self._is(duty, token):
            return False
        await self._quietly(self._client.set(self._key(duty), token, px=_ms(ttl)))
        return True

    async def _is(self, duty: str, token: str) -> bool:
        holder = await self._quietly(self._client.get(self._key(duty)))
        return holder is None or holder == token

    async def _quietly(self, command: Any) -> Any:
        try:
            return await command
        except redis.exceptions.RedisError:
            return None

    def _key(self, duty: str) -> str:
        return f"{self._namespace}:gate:{duty}"


def _ms(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
