"""Producers of every kind, and a publisher with a stream of its own, for each test that asks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from relay.adapters.postgres import floors
from relay.devstack import NatsServer
from tests.integration.publishing import KINDS, Producer, Relay, producing


@pytest.fixture(params=KINDS)
async def producer(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Producer]:
    """A producer of each kind in turn."""
    async with producing(request.param, database_url) as producer:
        yield producer


@pytest.fixture
async def relay(database_url: str, nats_server: NatsServer) -> AsyncIterator[Relay]:
    async with Relay(database_url, nats_server.url) as relay:
        yield relay


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every claim is taken for a slow one, and finds out where to begin."""
    monkeypatch.setattr(floors, "SLOW", -1.0)
    monkeypatch.setattr(floors, "TOGETHER", 0.0)
    monkeypatch.setattr(floors, "PAUSE", 0.0)
