"""A handler service that answers by hand, byte for byte, so that it can misbehave in every way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from relay.adapters.http import HttpEventHandler
from relay.ports import HandlerRequest

MESSAGE = UUID("018f3c5e-0000-7000-8000-000000000001")
BODY = b'{"message_id": "018f3c5e-0000-7000-8000-000000000001", "payload": {"a": 1}}'


@dataclass
class Seen:
    """A request as it came over the wire."""

    line: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Service:
    """Answers by hand, so that it can misbehave. Each connection serves any number of requests."""

    answer: Answer
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    #: How many of them are open.
    connected: int = 0
    written: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/handle?team=a"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.connected += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.seen.append(Seen(head[0], headers, body))
                await self.answer(writer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.connected -= 1
            writer.close()


def answering(status: str, body: bytes = b"", *headers: str) -> Answer:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""])

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode() + body)
        await writer.drain()

    return answer


@asynccontextmanager
async def calling(answer: Answer, **options: Any) -> AsyncIterator[tuple[HttpEventHandler, Service]]:
    """A handler that calls a service, with a short time-out."""
    service = Service(answer)
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    handler = HttpEventHandler(service.url, **{"timeout": timedelta(seconds=20), **options})
    try:
        yield handler, service
    finally:
        await handler.close()
        server.close()


def request(**values: Any) -> HandlerRequest:
    defaults: dict[str, Any] = {
        "message_id": MESSAGE,
        "subject": "up.event.vibe_created.v1",
        "event_type": "vibe_created",
        "event_version": 1,
        "correlation_id": None,
        "attempt": 3,
        "body": BODY,
        "headers": {},
        "token": UUID(int=7),
    }
    return HandlerRequest(**{**defaults, **values})
