"""A broker that does not answer: one error with a code, within seconds."""

from __future__ import annotations

import asyncio

import pytest

from relay.adapters.jetstream.connection import connect_once
from relay.adapters.jetstream.topology import ensure
from relay.devstack import NatsServer
from relay.domain.errors import BrokerUnreachable
from relay.domain.topology import RELAY_ADVISORIES

pytestmark = pytest.mark.anyio


async def test_a_server_that_is_gone(own_nats: NatsServer) -> None:
    url = own_nats.url
    async with connect_once(url) as context:
        own_nats.stop()
        with pytest.raises(BrokerUnreachable):
            await ensure(context, [RELAY_ADVISORIES], [])
    async with asyncio.timeout(60):  # a client that tries again goes on for two minutes
        with pytest.raises(BrokerUnreachable, match="not reachable"):
            async with connect_once(url):
                pass


async def test_a_server_that_never_answers() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(60):
        with pytest.raises(BrokerUnreachable):
            async with connect_once(f"nats://127.0.0.1:{port}"):
                pass
    server.close()
