"""A handler service made with relay.handler on a real database, and calls as the relay makes them."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import UUID, uuid4

import httpx2
from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy import Column, Engine, MetaData, Table, Text, Uuid, create_engine, insert
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from relay.adapters.http import sign
from relay.domain.identity import Identity
from relay.handler import HandlerEndpoint, Received, processed_events_table
from tests.integration.publishing import query

metadata = MetaData()
effects = Table("effects", metadata, Column("message_id", Uuid, nullable=False), Column("title", Text))
processed = processed_events_table(metadata)

Received_ = Received[Any, Any]
Body = Callable[[Received_], Awaitable[Any] | Any]


class VibeCreated(BaseModel):
    title: str


def call(**fields: Any) -> dict[str, Any]:
    """A good request; fields set to ... are left out."""
    good = {
        "message_id": str(uuid4()),
        "subject": "vibespro.event.vibe_created.v1",
        "event_type": "vibe_created",
        "event_version": 1,
        "occurred_at": "2025-12-28T22:00:00Z",
        "correlation_id": str(uuid4()),
        "causation_id": None,
        "payload": {"title": "First light"},
    }
    return {name: value for name, value in (good | fields).items() if value is not ...}


@dataclass
class Service:
    """One handler service; ``body`` is what its endpoint does after it has written the effect."""

    kind: str
    url: str
    client: httpx2.AsyncClient
    secret: str | None = None
    body: Body = field(default=lambda _received: None)

    async def post(self, request: Any = None, *, headers: dict[str, str] | None = None) -> httpx2.Response:
        content = self.encode(request)
        if headers is None and self.secret:
            headers = self.signed(content)
        return await self.client.post("/handle", content=content, headers=headers or {})

    @staticmethod
    def encode(request: Any) -> bytes:
        return request if isinstance(request, bytes) else json.dumps(request or call()).encode()

    def sign_as(self, message_id: str, content: bytes) -> dict[str, str]:
        return sign(self.secret or "", message_id, int(time.time()), content)

    def signed(self, content: bytes, secret: str | None = None, age: float = 0) -> dict[str, str]:
        message_id = json.loads(content)["message_id"]
        return sign(secret or self.secret or "", message_id, int(time.time() - age), content)

    async def statuses(self, *requests: Any) -> list[int]:
        return [(await self.post(request)).status_code for request in requests]

    def hold(self) -> tuple[threading.Event, threading.Event]:
        """Make the next calls wait inside of the handler: set when one has arrived, and to let them go."""
        arrived, go = threading.Event(), threading.Event()

        async def wait(_event: Received_) -> None:
            arrived.set()
            assert await asyncio.to_thread(go.wait, 20)

        def block(_event: Received_) -> None:
            arrived.set()
            assert go.wait(20)

        self.body = block if self.kind == "sync" else wait
        return arrived, go

    def effects(self) -> list[UUID]:
        return [row["message_id"] for row in query(self.url, "SELECT message_id FROM effects")]

    def processed(self) -> list[UUID]:
        return [row["message_id"] for row in query(self.url, "SELECT message_id FROM processed_events")]


def write(event: Received_) -> Any:
    """Write the effect; to be awaited with an asynchronous session."""
    row = {"message_id": Identity.of(str(event.message_id)).uuid, "title": getattr(event.payload, "title", "")}
    return event.session.execute(insert(effects).values(**row))


@asynccontextmanager
async def engine_of(kind: str, url: str, **options: Any) -> AsyncIterator[Engine | AsyncEngine]:
    dsn = url.replace("postgresql://", "postgresql+psycopg://")
    if kind == "async":
        engine = create_async_engine(dsn, **options)
        yield engine
        await engine.dispose()
    else:
        sync_engine = create_engine(dsn, **options)
        yield sync_engine
        sync_engine.dispose()


@asynccontextmanager
async def serving(
    kind: str,
    url: str,
    *,
    payloads: Any = None,
    engine: dict[str, Any] | None = None,
    name: str = "vibes",
    **options: Any,
) -> AsyncIterator[Service]:
    """A FastAPI service: ``async``, ``sync``, or on ``starlette``."""
    async with engine_of("sync" if kind == "sync" else "async", url, **(engine or {})) as made:
        endpoint: Any = HandlerEndpoint(name, made, payloads or {"vibe_created.v1": VibeCreated}, **options)
        app = APPS[kind](endpoint, lambda event: service.body(event))  # noqa: PLW0108 - as it is by then
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://service", timeout=20) as client:
            service = Service(kind, url, client, options.get("secret"))
            yield service


def _async(endpoint: Any, body: Body) -> Any:
    app = FastAPI()

    @app.post("/handle")
    async def handle(event: Annotated[Received[VibeCreated, AsyncSession], endpoint.dependency()]) -> Any:
        await write(event)
        answer = body(event)
        return await answer if isinstance(answer, Awaitable) else answer

    return app


def _sync(endpoint: Any, body: Body) -> Any:
    app = FastAPI()

    @app.post("/handle")
    def handle(event: Annotated[Received[VibeCreated, Session], endpoint.dependency()]) -> Any:
        write(event)
        return body(event)

    return app


def _starlette(endpoint: Any, body: Body) -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Route

    async def handle(event: Received_) -> Any:
        await write(event)
        answer = body(event)
        return await answer if isinstance(answer, Awaitable) else answer

    return Starlette(routes=[Route("/handle", endpoint.route(handle), methods=["POST"])])


APPS: dict[str, Callable[[Any, Body], Any]] = {"async": _async, "sync": _sync, "starlette": _starlette}
