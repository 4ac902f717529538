"""The connection to NATS ends when it is told to, whenever that is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay.adapters.jetstream.client import RelayClient
from relay.adapters.jetstream.connection import NatsConnection
from relay.devstack import NatsServer
from tests.integration.publishing import eventually

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
