"""Clients that send or read slowly, or not at all, or too much: `relay ops` drops them, and answers others."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from uuid import uuid4

import httpx2
import psycopg
import pytest

from relay.devstack.ports import free_port
from relay.ops.api.app import create_app
from relay.ops.api.common import OpsLimits
from relay.ops.api.connections import BoundedServer, ConnectionLimits
from relay.ops.api.server import server_of
from relay.ops.api.turns import RequestLimits
from relay.settings import Settings
from tests.waiting import DEADLINE_S, eventually, wait_for

pytestmark = pytest.mark.anyio

QUICK = ConnectionLimits(head_s=0.5, rest_s=0.5)
TURNS = RequestLimits(requests=4, body_s=0.5, bodies=2)
HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /api/v1/contexts HTTP/1.1\r\n" + HOST
POST = (
    b"POST /api/v1/contexts/sea/events/retry HTTP/1.1\r\nContent-Type: application/json\r\n"
    + HOST
    + b"Content-Length: 1000000\r\n\r\n"
)
CHUNKED = POST.replace(b"Content-Length: 1000000", b"Transfer-Encoding: chunked")
LARGE = """INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload)
    VALUES (%s, 'made', 'case', 'v1', jsonb_build_object('x', repeat('x', 9000000)))"""


@dataclass
class Served:
    port: int
    server: BoundedServer

    async def get(self, path: str = "/api/v1/contexts") -> httpx2.Response:
        async with httpx2.AsyncClient(timeout=DEADLINE_S) as client:
            return await client.get(f"http://127.0.0.1:{self.port}{path}")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=4096)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


@contextmanager
def serving(database: str, turns: RequestLimits) -> Iterator[Served]:
    settings = Settings.model_validate({"contexts": {"sea": {"database_url": database}}})
    port = free_port()
    app = create_app(settings, limits=OpsLimits(downloads=3), turns=turns)
    server = server_of(app, "127.0.0.1", port, QUICK)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for("it serves", lambda: server.started)
        yield Served(port, server)
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def served(database_url: str) -> Iterator[Served]:
    with serving(database_url, TURNS) as served:
        yield served


async def pour(writer: asyncio.StreamWriter, part: bytes, pause: float) -> None:
    """Send a part again and again, until the server has closed the connection."""
    with suppress(OSError):
        while not writer.is_closing():
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)


#: What a connection begins with, what it sends again and again, and what it is told before it is closed.
SENDERS = {
    "nothing at all": (b"", b"", b""),
    "half a line": (b"GET / HT", b"", b""),
    "a head that drips": (GET, b"a", b""),
    "a head without an end": (GET, b"A: b\r\n" * 100, b" 400 "),
    "a line without an end": (b"GET /", b"a" * 1000, b" 400 "),
    "no HTTP": (b"\x16\x03\x01", b"\xff" * 1000, b" 400 "),
    "no body": (POST, b"", b" 408 "),
    "a body that drips": (POST, b" ", b" 408 "),
    "a body of unknown length": (CHUNKED, b"5\r\naaaaa\r\n", b" 413 "),
    "a chunk that drips": (CHUNKED + b"ffffff\r\n", b"a", b" 413 "),
    "a body nobody wants": (POST.replace(b"retry", b"none"), b"a", b" 408 "),
    "many requests, and a head that drips": (b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n" + GET, b"a", b" 200 "),
}


async def test_who_sends_slowly_or_without_an_end_is_dropped(served: Served) -> None:
    """All at once, and each some times over: meanwhile others are answered."""

    async def send(begin: bytes, again: bytes) -> bytes:
        async with served.open() as (reader, writer):
            writer.write(begin)
            pouring = asyncio.ensure_future(pour(writer, again, 0.02)) if again else None
            told = b""
            with suppress(OSError):
                while part := await reader.read(4096):
                    told += part
            if pouring:
                pouring.cancel()
            return told

    async with asyncio.timeout(DEADLINE_S):
        sending = {name: [asyncio.ensure_future(send(*it[:2])) for _ in range(3)] for name, it in SENDERS.items()}
        while not all(it.done() for them in sending.values() for it in them):
            assert (await served.get()).status_code == 200
    for name, (*_, expected) in SENDERS.items():
        for it in sending[name]:
            # The system may drop what was told, if the client still sends when the connection is closed.
            assert expected in it.result()[:20] or not it.result(), (name, it.result())
    codes = [json.loads(it.result().partition(b"\r\n\r\n")[2])["error"]["code"] for it in sending["no body"]]
    assert set(codes) == {"TOO_SLOW"}
    await eventually("no connection is left", lambda: not served.server.server_state.connections)


async def test_beyond_as_many_connections_the_oldest_silent_ones_are_closed(served: Served) -> None:
    served.server.config.limits = ConnectionLimits(connections=500, head_s=DEADLINE_S)
    silent = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(600)]
    try:
        assert (await served.get()).status_code == 200
        await eventually("100 are closed", lambda: sum(closed(it) for it in silent) >= 100)
        assert not any(closed(it) for it in silent[-50:])
    finally:
        for it in silent:
            it.close()


def closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    with suppress(BlockingIOError):
        return not connection.recv(1, socket.MSG_PEEK)
    return False


async def test_who_does_not_read_is_dropped(served: Served, database_url: str) -> None:
    """A download is a file: as many as may be at once, and the next is told to wait."""
    id = str(uuid4())
    with psycopg.connect(database_url) as connection:
        connection.execute(LARGE, [id])
    path = f"/api/v1/contexts/sea/events/{id}/payload"
    asked = f"GET {path} HTTP/1.1\r\n".encode() + HOST + b"\r\n"
    async with AsyncExitStack() as stack:
        for _ in range(3):
            reader, writer = await stack.enter_async_context(served.open())
            writer.write(asked)
            assert (await reader.readline()).split()[1] == b"200"
        told = await served.get(path)
        assert (told.status_code, told.json()["error"]["code"], told.headers["Retry-After"]) == (503, "BUSY", "1")
        assert (await served.get()).status_code == 200
        served.server.config.limits = ConnectionLimits(stalled_s=0.2)
        await eventually("they are dropped", lambda: not served.server.server_state.connections)
    assert len((await served.get(path)).content) == 9_000_009


async def test_who_reads_slowly_gets_all_of_it(served: Served, database_url: str) -> None:
    id = str(uuid4())
    with psycopg.connect(database_url) as connection:
        connection.execute(LARGE, [id])
    async with served.open() as (reader, writer):
        path = f"/api/v1/contexts/sea/events/{id}/payload".encode()
        writer.write(b"GET " + path + b" HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n")
        size, served.server.config.limits = 0, ConnectionLimits(stalled_s=1.0)
        while part := await reader.read(100_000):
            size += len(part)
            await asyncio.sleep(0.02)
        assert size > 9_000_000


async def test_requests_that_nobody_reads_the_answers_of_wait(served: Served) -> None:
    """Of one connection the next is answered when the last was sent; all of them have a bound together."""
    served.server.config.limits = ConnectionLimits(unsent=1_000_000)
    document = b"GET /api/v1/openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
    assert (await served.get("/api/v1/openapi.json")).status_code == 200
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(flood(served, document * 1_000))
        for _ in range(20):
            assert (await served.get()).status_code == 200


async def flood(served: Served, requests: bytes) -> None:
    async with served.open() as (_, writer):
        writer.transport.pause_reading()
        writer.write(requests)
        await eventually("it is dropped", lambda: writer.transport.is_closing() or not sending(served))


def sending(served: Served) -> int:
    return sum(it.unsent > 0 for it in list(served.server.server_state.connections))


async def test_only_some_requests_are_answered_at_once(database_url: str) -> None:
    """A table is locked: who asks about it holds a place until the answer would take too long."""
    events = "/api/v1/contexts/sea/events"
    with serving(database_url, RequestLimits(requests=4, answer_s=2.0)) as served:
        # A machine with much to do may send a head late.
        served.server.config.limits = ConnectionLimits()
        with psycopg.connect(database_url) as connection:
            connection.execute("LOCK outbox_events")
            found = await asyncio.gather(*(served.get(f"{events}?limit={it}") for it in range(1, 13)))
            assert {(it.status_code, it.headers["Retry-After"]) for it in found} == {(503, "1")}
            assert {it.json()["error"]["code"] for it in found} == {"BUSY", "TOO_SLOW"}
            waiting = [asyncio.ensure_future(served.get(f"{events}?limit={it}")) for it in range(1, 13)]
            assert (await served.get("/healthz")).status_code == 200
            await asyncio.gather(*waiting)
        assert (await served.get("/api/v1/contexts")).status_code == 200
