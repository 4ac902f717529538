"""Producers of every kind, and a publisher with a stream of its own, for each test that asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from relay.adapters.postgres.wakeup import Wakeup
from relay.devstack import NatsServer, PostgresServer, Server
from tests.integration import devstack_support
from tests.integration.low_water_support import EAGER
from tests.integration.publishing import KINDS, NO_REST, Producer, Relay, producing
from tests.servers import initialised


@pytest.fixture(params=KINDS)
async def producer(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Producer]:
    """A producer of each kind in turn."""
    async with producing(request.param, database_url) as producer:
        yield producer


@pytest.fixture
async def relay(database_url: str, nats_server: NatsServer) -> AsyncIterator[Relay]:
    async with Relay(database_url, nats_server.url) as relay:
        yield relay


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a question may take long. It is asked again all the same."""
    monkeypatch.setattr("relay.bootstrap.Wakeup", partial(Wakeup, times=NO_REST))


@pytest.fixture(params=devstack_support.KINDS, ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest, server_directory: Path) -> Iterator[Server]:
    """A server of each kind in turn, for this test alone."""
    server = request.param(server_directory)
    with initialised(server) if isinstance(server, PostgresServer) else server:
        yield server


@pytest.fixture
def eager(relay: Relay) -> None:
    """Every claim is taken for a slow one, and finds out where to begin."""
    relay.search = EAGER
