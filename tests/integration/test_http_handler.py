"""HttpEventHandler against a real HTTP server: every answer, and every way of not answering, within its time."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from relay.adapters.http import HttpAccess, HttpEventHandler
from relay.domain.model import HandlerResult, Verdict
from tests.integration.http_service import BODY, MESSAGE, Answer, answering, calling, request

pytestmark = pytest.mark.anyio


async def ask(answer: Answer, **options: Any) -> HandlerResult:
    async with calling(answer, **options) as (handler, _):
        return await asyncio.wait_for(handler.handle(request()), 30)


# --- answers ---


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        ("200 OK", b'{"ok": true}', HandlerResult(Verdict.PROCESSED)),
        ("204 No Content", b"", HandlerResult(Verdict.PROCESSED)),
        ("409 Conflict", b"", HandlerResult(Verdict.ALREADY_PROCESSED)),
        ("422 Unprocessable", b"", HandlerResult(Verdict.POISON, "HTTP 422")),
        ("422 Unprocessable", b'{"reason": "no such vibe"}', HandlerResult(Verdict.POISON, "no such vibe")),
        ("422 Unprocessable", b'{"detail": "no such vibe"}', HandlerResult(Verdict.POISON, "no such vibe")),
        ("422 Unprocessable", b'{"detail": "b", "reason": "a"}', HandlerResult(Verdict.POISON, "a")),
        ("422 Unprocessable", b" plain words\n", HandlerResult(Verdict.POISON, "plain words")),
        ("422 Unprocessable", b'["listed"]', HandlerResult(Verdict.POISON, '["listed"]')),
        (
            "422 Unprocessable",
            b'{"detail": [{"loc": 1}]}',
            HandlerResult(Verdict.POISON, '{"detail": [{"loc": 1}]}'),
        ),
        ("422 Unprocessable", b"\xff\xfe", HandlerResult(Verdict.POISON, "\ufffd\ufffd")),
        ("422 Unprocessable", b"[" * 50_000, HandlerResult(Verdict.POISON, "[" * 500)),
        ("500 Oops", b'{"detail": "boom"}', HandlerResult(Verdict.TRANSIENT, "HTTP 500: boom")),
        ("503 Busy", b"", HandlerResult(Verdict.TRANSIENT, "HTTP 503")),
        ("404 Not Found", b"", HandlerResult(Verdict.TRANSIENT, "HTTP 404")),
        ("401 Unauthorized", b"who", HandlerResult(Verdict.TRANSIENT, "HTTP 401: who")),
    ],
)
async def test_the_status_decides_and_the_body_says_why(status: str, body: bytes, expected: HandlerResult) -> None:
    assert await ask(answering(status, body)) == expected


async def test_a_redirect_is_not_followed() -> None:
    """It would carry the event, signature included, to wherever the answer says."""
    async with calling(answering("200 OK")) as (_, elsewhere):
        to = f"Location: http://127.0.0.1:{elsewhere.port}/"
        for status in ("302 Found", "307 Temporary Redirect", "308 Permanent Redirect"):
            result = await ask(answering(status, b"", to))
            assert result == HandlerResult(Verdict.TRANSIENT, f"HTTP {status[:3]}")
        assert elsewhere.connections == 0


async def test_a_huge_answer_is_read_up_to_a_bound() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 422 No\r\nContent-Length: 10000000000\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    assert await ask(endless) == HandlerResult(Verdict.POISON, "x" * 500)


async def test_a_long_header_takes_nothing_from_a_success() -> None:
    """What a proxy or a framework adds to an answer is no reason to ask again."""
    long = f"Set-Cookie: session={'x' * 20_000}"
    assert await ask(answering("200 OK", b"", long)) == HandlerResult(Verdict.PROCESSED)


async def test_no_answer_is_asked_for_in_a_form_that_swells() -> None:
    async with calling(answering("422 No", b"why")) as (handler, service):
        await handler.handle(request())
    assert service.seen[0].headers["accept-encoding"] == "identity"


async def test_cookies_are_not_kept() -> None:
    async with calling(answering("200 OK", b"", "Set-Cookie: a=b")) as (_, service):
        handler = HttpEventHandler(
            service.url.replace("127.0.0.1", "localhost")
        )  # of numbers nobody takes cookies
        await handler.handle(request())
        await handler.handle(request())
        await handler.close()
    assert [seen.headers.get("cookie") for seen in service.seen] == [None, None]


# --- no answer ---

SHORT = timedelta(milliseconds=300)
TIME_OUT = HandlerResult(Verdict.TRANSIENT, "time-out: no answer within 0.3 s")


async def never(_writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def drip_head(writer: asyncio.StreamWriter) -> None:
    """Each byte comes well within any read time-out, the whole never does."""
    while True:
        writer.write(b"H")
        await writer.drain()
        await asyncio.sleep(0.05)


async def drip_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def continue_forever(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("answer", [never, drip_body, continue_forever])
async def test_the_whole_call_ends_within_the_time_out(answer: Answer) -> None:
    start = time.monotonic()
    assert await ask(answer, timeout=SHORT) == TIME_OUT
    assert 0.25 < time.monotonic() - start < 10


async def test_a_head_that_is_no_http_is_a_transient_failure() -> None:
    result = await ask(drip_head, timeout=SHORT)
    assert result.verdict is Verdict.TRANSIENT


async def test_success_counts_although_its_body_never_ends() -> None:
    """The handler has said 200: asking it again would be a second call for nothing."""

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    assert await ask(drip, timeout=timedelta(seconds=2)) == HandlerResult(Verdict.PROCESSED)


@pytest.mark.parametrize("answer", [b"", b"HHHH\r\n\r\n", b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nx"])
async def test_why_there_is_no_answer_is_said_without_the_address(answer: bytes) -> None:
    """It may hold a secret, and errors are stored and shown."""

    async def broken(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    result = await ask(broken)
    assert result.verdict is Verdict.TRANSIENT
    assert re.match(r"\w+Error: .+", result.detail)
    assert "team=a" not in result.detail


# --- what is sent ---


async def test_the_request_carries_the_body_unchanged_and_says_which_message_and_attempt_it_is() -> None:
    correlation = uuid4()
    async with calling(answering("200 OK")) as (handler, service):
        await handler.handle(request(correlation_id=correlation))
        await handler.handle(request())
    first, second = service.seen
    assert (first.line, first.body) == ("POST /handle?team=a HTTP/1.1", BODY)
    assert first.headers["content-type"] == "application/json"
    assert first.headers["idempotency-key"] == str(MESSAGE)
    assert first.headers["relay-attempt"] == "3"
    assert first.headers["x-correlation-id"] == str(correlation)
    assert "x-correlation-id" not in second.headers
    assert not [name for name in second.headers if name.startswith("webhook-")]


async def test_the_environments_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert await ask(answering("200 OK")) == HandlerResult(Verdict.PROCESSED)


async def test_each_key_signs_as_standard_webhooks_says() -> None:
    """Computed here by hand: HMAC-SHA256 over id.timestamp.body, of the key's bytes behind whsec_ or as it is."""
    old, new = b"0123456789abcdef", "plain-key"
    secret = f"whsec_{base64.b64encode(old).decode()} {new}"
    before = int(time.time())
    async with calling(answering("200 OK"), access=HttpAccess(signing_secret=secret)) as (handler, service):
        await handler.handle(request())
    [seen] = service.seen
    stamp = seen.headers["webhook-timestamp"]
    assert before <= int(stamp) <= int(time.time())
    assert seen.headers["webhook-id"] == str(MESSAGE)
    content = b"018f3c5e-0000-7000-8000-000000000001." + stamp.encode() + b"." + seen.body
    digests = [hmac.new(key, content, hashlib.sha256).digest() for key in (old, new.encode())]
    expected = " ".join("v1," + base64.b64encode(digest).decode() for digest in digests)
    assert seen.headers["webhook-signature"] == expected
    assert json.loads(seen.body)["payload"] == {"a": 1}
