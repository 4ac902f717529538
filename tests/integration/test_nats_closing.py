"""The connection to NATS ends when it is told to, whenever that is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay.adapters.jetstream.client import RelayClient
from relay.adapters.jetstream.connection import NatsConnection, connect_once
from relay.devstack import NatsServer
from relay.domain.errors import BrokerUnreachable
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_told_to_close_as_it_connects_it_leaves_nothing_behind(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Python 3.11 the client loses a cancellation that comes together with an answer of the server."""
    connect, connected = RelayClient.connect, asyncio.Event()

    async def losing(self: RelayClient, *arguments: Any, **options: Any) -> None:
        await connect(self, *arguments, **options)
        connected.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return

    monkeypatch.setattr(RelayClient, "connect", losing)
    before = asyncio.all_tasks()
    connection = NatsConnection(nats_server.url)
    connection.start()
    await connected.wait()
    async with asyncio.timeout(60):
        await connection.close()
    # The client's own tasks end a moment after it.
    await eventually("its tasks end", lambda: not asyncio.all_tasks() - before)


async def test_told_to_close_before_the_server_has_said_a_word_it_hangs_up() -> None:
    came, hung_up = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await reader.read()
        hung_up.set()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        connection = NatsConnection(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        connection.start()
        await came.wait()
        await connection.close()
        async with asyncio.timeout(60):
            await hung_up.wait()


async def test_a_command_that_cannot_use_the_server_hangs_up() -> None:
    hung_up = asyncio.Event()

    async def offer_no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "x", "max_payload": 1000}\r\n')
        await reader.read()
        hung_up.set()
        writer.close()

    async with await asyncio.start_server(offer_no_tls, "127.0.0.1", 0) as server:
        with pytest.raises(BrokerUnreachable, match="offers no TLS"):
            async with connect_once(f"tls://127.0.0.1:{server.sockets[0].getsockname()[1]}"):
                pass
        async with asyncio.timeout(60):
            await hung_up.wait()
