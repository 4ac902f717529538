"""The webhook for alerts: what counts as taken, and that its address stays a secret."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from relay.adapters.webhook import Webhook
from relay.domain.errors import AlertRefused

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that gives these answers in turn; none left: it does not answer."""
    requests: list[bytes] = []
    remaining = list(answers)
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"the body"))
        if remaining:
            writer.write(remaining.pop(0) + b"\r\nContent-Length: 0\r\n\r\n")
        else:
            await over.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/s3cret", requests
    finally:
        over.set()
        server.close()


async def test_an_alert_is_one_post_of_json() -> None:
    async with answering(b"HTTP/1.1 204 No Content") as (url, requests):
        await Webhook(url).send(b"the body")
    [request] = requests
    assert request.startswith(b"POST /s3cret HTTP/1.1\r\n")
    assert b"content-type: application/json" in request


@pytest.mark.parametrize("status", ["302 Found\r\nLocation: /other", "404 Not Found", "500 No"])
async def test_anything_but_2xx_is_a_refusal(status: str) -> None:
    async with answering(f"HTTP/1.1 {status}".encode(), b"HTTP/1.1 200 OK") as (url, requests):
        with pytest.raises(AlertRefused, match=status[:3]):
            await Webhook(url).send(b"the body")
    assert len(requests) == 1


async def test_no_answer_in_time_is_a_refusal() -> None:
    async with answering() as (url, _):
        with pytest.raises(AlertRefused, match=r"within 0\.2 s"):
            await Webhook(url, timeout=timedelta(seconds=0.2)).send(b"the body")


async def test_nobody_there_is_a_refusal_that_names_no_address() -> None:
    with pytest.raises(AlertRefused) as caught:
        await Webhook("http://127.0.0.1:1/s3cret").send(b"the body")
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
