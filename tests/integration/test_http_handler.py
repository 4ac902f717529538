"""HttpEventHandler against a real HTTP server: every answer, and every way of not answering, within its time."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from relay.adapters.http import HttpAccess, HttpEventHandler, sign_headers
from relay.domain.actor import Actor
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
        ("201 Created", b'{"id": 1}', HandlerResult(Verdict.PROCESSED)),
        ("204 No Content", b"", HandlerResult(Verdict.PROCESSED)),
        ("202 Accepted", b"", HandlerResult(Verdict.TRANSIENT, "HTTP 202")),
        ("206 Partial Content", b"", HandlerResult(Verdict.TRANSIENT, "HTTP 206")),
        ("207 Multi-Status", b"", HandlerResult(Verdict.TRANSIENT, "HTTP 207")),
        ("304 Not Modified", b"", HandlerResult(Verdict.TRANSIENT, "HTTP 304")),
        ("409 Conflict", b"", HandlerResult(Verdict.ALREADY_PROCESSED)),
        ("422 Unprocessable", b"", HandlerResult(Verdict.POISON, "HTTP 422")),
        ("503 Busy", b"", HandlerResult(Verdict.TRANSIENT, "HTTP 503")),
        ("404 Not Found", b"", HandlerResult(Verdict.TRANSIENT, "HTTP 404")),
    ],
)
async def test_the_status_decides(status: str, body: bytes, expected: HandlerResult) -> None:
    assert await ask(answering(status, body)) == expected


STOCK_422 = json.dumps(
    {
        "detail": [
            {
                "type": "string_too_long",
                "loc": ["body", "payload", "iban"],
                "msg": "Value error, DE89370400440532013000 is too long",
                "input": "DE89370400440532013000",
                "ctx": {"error": "DE89370400440532013000"},
            },
            {"type": "missing", "loc": ["body", "payload", "accounts", "DE89370400440532013000", 0, "name"]},
        ]
    }
).encode()


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        (STOCK_422, "string_too_long at body.payload.iban; missing at body.payload.accounts.*.0.name"),
        (b'{"code": "NO_SUCH_VIBE", "detail": "DE89370400440532013000"}', "NO_SUCH_VIBE"),
        (b'{"error_code": "NO_SUCH_VIBE", "input": "DE89370400440532013000"}', "NO_SUCH_VIBE"),
        (b'{"detail": {"code": "NO_SUCH_VIBE", "iban": "DE89370400440532013000"}}', "NO_SUCH_VIBE"),
        (b'{"code": "DE89370400440532013000"}', ""),
        (b'{"code": "no such vibe DE89"}', ""),
        (b'{"reason": "DE89370400440532013000"}', ""),
        (b'{"detail": "DE89370400440532013000"}', ""),
        (b'{"detail": [{"loc": 1}, 7, {"type": "a b"}]}', ""),
        (b'["DE89370400440532013000"]', ""),
        (b" DE89370400440532013000\n", ""),
        (b"\xff\xfe", ""),
        (b"[" * 50_000, ""),
        (b'{"a":' * 10_000, ""),
        (b"9" * 5_000, ""),
    ],
)
async def test_codes_and_locations_of_a_body_are_told_and_nothing_else(body: bytes, codes: str) -> None:
    """FastAPI's stock answer repeats the input, and what is told goes into logs, columns and alerts."""
    poison, transient = await ask(answering("422 No", body)), await ask(answering("500 No", body))
    assert poison.detail == ("HTTP 422: " + codes if codes else "HTTP 422")
    assert transient.detail == ("HTTP 500: " + codes if codes else "HTTP 500")
    assert "DE89" not in repr(poison) + repr(transient)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("no such vibe", "no such vibe"),
        ("50% off", "50% off"),
        ("caf%C3%A9%0A%1b[2J%00", "café\\n\\x1b[2J\\x00"),
        ("%FF%ED%A0%80", "\ufffd\ufffd\ufffd\ufffd"),
        ("x" * 900, "x" * 500),
    ],
)
async def test_what_a_service_says_for_operators_is_told(header: str, reason: str) -> None:
    answer = answering("422 No", STOCK_422, f"Relay-Reason: {header}")
    assert (await ask(answer)).detail == f"HTTP 422: {reason}"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b" plain\x1b[31m words\x00\n", "plain\\x1b[31m words\\x00"),
        ("€".encode() * 1_000, "€" * 166),
        (b"", None),
    ],
)
async def test_a_body_is_told_to_those_who_ask_for_it_escaped_and_up_to_a_bound(
    body: bytes, said: str | None
) -> None:
    result = (await ask(answering("503 Busy", body))).in_full()
    assert result.detail == ("HTTP 503" if said is None else f"HTTP 503: {said}")
    assert len(result.detail.encode()) <= 520


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

    assert (await ask(endless)).in_full() == HandlerResult(Verdict.POISON, "HTTP 422: " + "x" * 500)


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
    assert time.monotonic() - start > 0.25


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


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"s3cret\r\n\r\n",
        b"HTTP/1.1 2s3cret\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nx",
        b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\ns3cret\r\n",
        b"HTTP/1.1 503 Busy\r\ns3cret\r\n\r\n",
    ],
)
async def test_why_there_is_no_answer_is_said_without_the_address_and_what_came(answer: bytes) -> None:
    """Either may hold a secret, and errors are stored and shown."""

    async def broken(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    result = await ask(broken)
    assert result.verdict is Verdict.TRANSIENT
    assert re.match(r"\w+Error: .+", result.detail)
    assert "team=a" not in result.detail
    assert "s3cret" not in result.detail


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


async def test_what_a_handler_may_trust_is_signed_too() -> None:
    """Computed here by hand, as docs/how-to/http-handlers.md says."""
    asked = replace(request(), actor=Actor("Ann Ö.", "HUMAN"))
    async with calling(answering("200 OK"), access=HttpAccess(signing_secret="one two")) as (handler, service):
        await handler.handle(asked)
        await handler.handle(request())
    for seen, actor in zip(service.seen, (["Ann%20%C3%96.", "HUMAN"], ["", ""]), strict=True):
        lines = ["v2", str(MESSAGE), seen.headers["webhook-timestamp"], *actor, "3"]
        digests = [hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).digest() for key in (b"one", b"two")]
        expected = " ".join("v2," + base64.b64encode(digest).decode() for digest in digests)
        assert seen.headers["relay-signature"] == expected


def test_the_vector_of_the_page_is_right() -> None:
    headers = {"relay-actor-id": "ann", "relay-actor-kind": "HUMAN", "relay-attempt": "2"}
    signed = sign_headers("s3cret", "m", 1, headers)
    assert signed in (Path(__file__).parents[2] / "docs/how-to/http-handlers.md").read_text()
