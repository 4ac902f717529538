"""Asks the servers that a process of the fleet needs, for its probe /readyz, on separate connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from relay.access import jetstream, redis_options
from relay.adapters.gate import Gates
from relay.adapters.postgres.pool import connected
from relay.domain.errors import RelayError
from relay.settings import ContextSettings, Settings
from relay.telemetry.probes import Examined

#: How long a server may take to answer, in seconds.
_PATIENCE_S: Final = 4.0
#: How many servers are asked at the same time.
_AT_ONCE: Final = 8


def examine(settings: Settings) -> Sequence[Examined]:
    """Ask NATS, Redis and the database of each context. Waits for them; call it outside of event loops."""
    return asyncio.run(_examine(settings))


async def _examine(settings: Settings) -> Sequence[Examined]:
    asked: dict[str, Callable[[], Awaitable[None]]] = {
        "nats": partial(_nats, settings),
        "redis": partial(_redis, settings),
        **{f"postgresql {name}": partial(_postgresql, it) for name, it in settings.contexts.items()},
    }
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(server: str, ask: Callable[[], Awaitable[None]]) -> Examined:
        async with slots:
            return await _examined(server, ask)

    return await asyncio.gather(*(one(server, ask) for server, ask in asked.items()))


async def _examined(server: str, ask: Callable[[], Awaitable[None]]) -> Examined:
    begun, error = time.perf_counter(), None
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await ask()
    except TimeoutError:
        error = "TIMEOUT"
    except RelayError as failed:
        error = failed.code
    except Exception as failed:  # its text may hold an address or a password
        error = type(failed).__name__
    return Examined(server, error is None, round((time.perf_counter() - begun) * 1_000, 1), error)


async def _nats(settings: Settings) -> None:
    async with jetstream(settings):
        """It answers."""


async def _redis(settings: Settings) -> None:
    gates = Gates(settings.redis_url.get_secret_value(), settings.redis_namespace, **redis_options(settings))
    try:
        await gates.client.ping()
    finally:
        await gates.aclose()


async def _postgresql(context: ContextSettings) -> None:
    async with connected(context.database, "probe"):
        """It answers."""
