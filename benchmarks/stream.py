"""What the measures ask of JetStream, each on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
from nats.js import JetStreamContext

_POLL = 0.01


@asynccontextmanager
async def jetstream(url: str) -> AsyncIterator[JetStreamContext]:
    """A connection to JetStream, closed at the end."""
    client = await nats.connect(url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def until_stored(
    js: JetStreamContext, stream: str, count: int, seconds: float = 1800.0, every: float = _POLL
) -> None:
    """Wait until a stream holds ``count`` messages. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while (await js.stream_info(stream)).state.messages < count:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(every)


async def until_delivering(js: JetStreamContext, stream: str, consumer: str, seconds: float = 60.0) -> None:
    """Wait until a consumer has messages under way. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not (await js.consumer_info(stream, consumer)).num_ack_pending:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(_POLL / 2)


async def until_acknowledged(js: JetStreamContext, stream: str, consumer: str, seconds: float = 1800.0) -> None:
    """Wait until nothing waits for a consumer and nothing is under way. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while True:
            info = await js.consumer_info(stream, consumer)
            if not info.num_pending and not info.num_ack_pending:
                return
            await asyncio.sleep(_POLL)
