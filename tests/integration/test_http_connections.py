"""The connections of HttpEventHandler to a real server: used again, given up in time, and cut at any point."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from datetime import timedelta

import pytest

from relay.adapters.http import HttpEventHandler
from relay.domain.model import HandlerResult, Verdict
from tests.integration.http_service import answering, calling, request

pytestmark = pytest.mark.anyio


async def late(writer: asyncio.StreamWriter) -> None:
    """A body that comes when the head has long been read."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n")
    await asyncio.sleep(0.05)
    writer.write(b"x")


async def test_a_connection_is_used_again_whatever_the_answer() -> None:
    """A connection each would cost a round trip per event, and on a busy day all local ports."""
    for answer in (
        answering("200 OK", b'{"ok": true}'),
        answering("204 No Content"),
        answering("422 No", b"why"),
        answering("503 Busy", b"x" * 10_000),
        late,
    ):
        async with calling(answer) as (handler, service):
            for _ in range(3):
                await handler.handle(request())
            assert (service.connections, len(service.seen)) == (1, 3)


async def test_a_connection_that_nobody_uses_is_given_up_before_the_service_does_so() -> None:
    """Or a request meets its farewell on the way, which costs an attempt. Some services wait two seconds."""
    async with calling(answering("200 OK")) as (handler, service):
        await handler.handle(request())
        assert service.connected == 1
        async with asyncio.timeout(10):
            while service.connected:  # noqa: ASYNC110 - the service tells of nothing
                await asyncio.sleep(0.05)


async def test_calls_run_beside_each_other() -> None:
    both = asyncio.Barrier(2)

    async def together(writer: asyncio.StreamWriter) -> None:
        await both.wait()
        await answering("200 OK")(writer)

    async with calling(together) as (handler, _), asyncio.timeout(10):
        results = await asyncio.gather(handler.handle(request()), handler.handle(request()))
    assert results == [HandlerResult(Verdict.PROCESSED)] * 2


async def test_a_refused_connection_is_a_transient_failure() -> None:
    handler = HttpEventHandler("http://127.0.0.1:9/handle")
    result = await asyncio.wait_for(handler.handle(request()), 60)
    assert result.verdict is Verdict.TRANSIENT
    assert result.detail.startswith("ConnectError")
    await handler.close()


async def test_a_connection_that_is_not_taken_up_has_a_time_out_of_its_own() -> None:
    with socket.socket() as listening, ExitStack() as queue:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        # Nobody accepts, and when the queue is full nothing more is answered.
        for _ in range(4):
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        handler = HttpEventHandler(
            f"http://127.0.0.1:{listening.getsockname()[1]}/", connect_timeout=timedelta(milliseconds=300)
        )
        result = await asyncio.wait_for(handler.handle(request()), 60)
        await handler.close()
    assert result == HandlerResult(Verdict.TRANSIENT, "time-out: no connection within 0.3 s")


async def test_a_connection_cut_in_the_middle_is_a_transient_failure_and_the_next_call_succeeds() -> None:
    answers = [b"", b"HTTP/1.1 200 OK\r\nContent-Len", b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nx"]

    async def cut(writer: asyncio.StreamWriter) -> None:
        if not answers:
            await answering("200 OK")(writer)
            return
        writer.write(answers.pop(0))
        await writer.drain()
        writer.close()

    async with calling(cut) as (handler, service):
        for _ in range(3):
            result = await handler.handle(request())
            assert result.verdict is Verdict.TRANSIENT
            assert result.detail
        assert await handler.handle(request()) == HandlerResult(Verdict.PROCESSED)
        assert service.connections == 4  # nothing was sent twice behind our back
