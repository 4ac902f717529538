"""HttpEventHandler: PORT-047-005 over HTTP (SDS-047 §12).

The URL comes from configuration only, redirects are not followed, the answer is read up to a bound,
and the whole call ends within the time-out. Requests are signed as in Standard Webhooks when a secret
is set.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from contextlib import suppress
from datetime import timedelta
from typing import Final

import httpx2

from relay.domain.model import HandlerResult
from relay.ports import HandlerRequest

_MAX_ANSWER: Final = 65_536
_DETAIL: Final = 500
#: An idle connection is given up before usual servers do so (gunicorn 2 s, uvicorn 5 s), in seconds: a request
#: that meets their farewell on its way counts as a failed attempt.
_IDLE: Final = 1.5
#: How long the rest of a successful answer may take, in seconds.
_SKIP: Final = 0.2


class HttpEventHandler:
    """Calls ``POST url`` for every message. One instance serves a whole process, concurrently."""

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta = timedelta(seconds=30),
        connect_timeout: timedelta = timedelta(seconds=5),
        signing_secret: str | None = None,
        max_connections: int = 100,
    ) -> None:
        self._url = url
        self._timeout = timeout.total_seconds()
        self._secret = signing_secret
        self._client = httpx2.AsyncClient(
            follow_redirects=False,
            timeout=httpx2.Timeout(self._timeout, connect=connect_timeout.total_seconds()),
            limits=httpx2.Limits(
                max_connections=max_connections,
                max_keepalive_connections=max_connections,
                keepalive_expiry=_IDLE,
            ),
            # Proxies and credentials of the environment are not for calls between services.
            trust_env=False,
        )

    async def handle(self, request: HandlerRequest) -> HandlerResult:
        """See the port. Time-outs and broken connections are transient failures."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._call(request)
        except (TimeoutError, httpx2.TimeoutException):
            return HandlerResult.failed(f"time-out: no answer within {self._timeout:g} s")
        except httpx2.HTTPError as error:
            return HandlerResult.failed(f"{type(error).__name__}: {error}"[:_DETAIL])

    async def close(self) -> None:
        await self._client.aclose()

    async def _call(self, request: HandlerRequest) -> HandlerResult:
        headers = {
            "content-type": "application/json",
            "idempotency-key": str(request.message_id),
            "relay-attempt": str(request.attempt),
        }
        if request.correlation_id is not None:
            headers["x-correlation-id"] = str(request.correlation_id)
        if self._secret is not None:
            headers |= sign(self._secret, str(request.message_id), int(time.time()), request.body)
        async with self._client.stream("POST", self._url, content=request.body, headers=headers) as response:
            if 200 <= response.status_code < 300:
                await _skip(response)
                return HandlerResult.from_status(response.status_code)
            return HandlerResult.from_status(response.status_code, await read_detail(response))


async def _skip(response: httpx2.Response) -> None:
    """Read past a body that nobody needs, or the connection could not be used again.

    The handler has said that it is done, so what comes of the rest changes nothing.
    """
    with suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(_SKIP):
            await _body(response)


async def _body(response: httpx2.Response) -> bytes:
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MAX_ANSWER:
            break
    return body[:_MAX_ANSWER]


async def read_detail(response: httpx2.Response) -> str:
    """The reason a handler gave, from a JSON body's ``detail`` or ``reason`` or the text itself."""
    text = (await _body(response)).decode("utf-8", "replace").strip()
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return text[:_DETAIL]
    reason = (answer.get("reason") or answer.get("detail")) if isinstance(answer, dict) else None
    return (reason if isinstance(reason, str) else text)[:_DETAIL]


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The Standard Webhooks headers: HMAC-SHA256 over ``id.timestamp.body``.

    ``secret`` may hold several keys separated by spaces, for rotation; each signs. A key with the
    prefix ``whsec_`` is base64, any other is taken as it is.
    """
    content = f"{message_id}.{timestamp}.".encode() + body
    signatures = [
        base64.b64encode(hmac.new(_key(key), content, hashlib.sha256).digest()).decode() for key in secret.split()
    ]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def _key(secret: str) -> bytes:
    return base64.b64decode(secret[6:]) if secret.startswith("whsec_") else secret.encode()
