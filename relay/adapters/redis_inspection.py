"""What Redis says about itself, and whether a program listens at an address. Only reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import redis
import redis.asyncio
import redis.exceptions

from relay.adapters.redis_client import reached

_TIMEOUT_S: Final = 3.0
#: Dramatiq counts a worker without a heartbeat for this time as dead, in milliseconds.
_DEAD_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """The server of the queue.

    Sizes in bytes, ``limit`` 0 for none. ``policy``: which keys it evicts when it is full.

    ``ahead``: how far this machine's clock is ahead of the server's, in seconds, exact to ``exact``. ``workers``:
    how many processes take jobs from the queue. ``refused``: commands that our user may not use; what they answer
    is not known.
    """

    version: str = ""
    policy: str = "noeviction"
    limit: int = 0
    used: int = 0
    replica: bool = False
    ahead: float = 0.0
    exact: float = 0.0
    workers: int = 0
    refused: str = ""


async def look(url: str, namespace: str, options: Mapping[str, Any]) -> QueueState:
    """Ask Redis. Raises QueueUnreachable. ``options``: as `relay.credentials.redis_options` returns them."""
    client = redis.asyncio.Redis.from_url(
        url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, **options
    )
    try:
        return await reached(_look(client, namespace))
    finally:
        await client.aclose()


async def _look(client: Any, namespace: str) -> QueueState:
    await client.ping()
    begin = time.time()
    seconds, micros = await client.time()
    end = time.time()
    living = await client.zrangebyscore(f"{namespace}:__heartbeats__", int(seconds * 1000) - _DEAD_MS, "+inf")
    try:
        info, refused = await client.info(), ""
    except redis.exceptions.NoPermissionError:
        info, refused = {}, "INFO"
    return QueueState(
        version=str(info.get("valkey_version") or info.get("redis_version") or ""),
        policy=str(info.get("maxmemory_policy", "noeviction")),
        limit=int(info.get("maxmemory", 0)),
        used=int(info.get("used_memory", 0)),
        replica=info.get("role") == "slave",
        ahead=(begin + end) / 2 - (seconds + micros / 1e6),
        exact=(end - begin) / 2,
        workers=len(living),
        refused=refused,
    )


async def listens(host: str, port: int) -> str:
    """Whether a program accepts connections there: "" if so, else why not. Sends nothing."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no answer within {_TIMEOUT_S:g} s"
    except OSError as error:
        return error.strerror or type(error).__name__
    writer.close()
    return ""
