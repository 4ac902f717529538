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
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Final
from urllib.parse import unquote

import aiohttp

from relay.domain.disclosure import answered, printable
from relay.domain.model import DONE, HandlerResult
from relay.ports import HandlerRequest

_MAX_ANSWER: Final = 65_536
#: The header in which a service says for operators, percent-encoded if need be, why it refuses a message.
REASON: Final = "Relay-Reason"
#: An idle connection is given up before usual servers do so (gunicorn 2 s, uvicorn 5 s), in seconds: a request
#: that meets their farewell on its way counts as a failed attempt.
_IDLE: Final = 1.5
#: How long the rest of a successful answer may take, in seconds.
_SKIP: Final = 0.2
#: No answer of a handler is worth decoding, and what is not decoded cannot swell.
_HEADERS: Final = {"user-agent": "jetrelay", "accept-encoding": "identity"}
AUTHORIZATION: Final = "authorization"


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """What a call proves itself with, and whom it trusts; see the settings of the same names."""

    signing_secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_header: str = AUTHORIZATION
    tls: ssl.SSLContext | None = None

    def headers(self, message_id: str, body: bytes) -> dict[str, str]:
        """The headers that prove where a call comes from."""
        headers = self.authorization()
        if self.signing_secret is not None:
            headers |= sign(self.signing_secret, message_id, int(time.time()), body)
        return headers

    def authorization(self) -> dict[str, str]:
        """The header that is the same for every call; none without a token."""
        if self.token is None:
            return {}
        bearer = self.token_header == AUTHORIZATION and " " not in self.token
        return {self.token_header: f"Bearer {self.token}" if bearer else self.token}


_ANONYMOUS: Final = HttpAccess()


class HttpEventHandler:
    """Calls ``POST url`` for every message. One instance serves a whole process, concurrently."""

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta = timedelta(seconds=30),
        connect_timeout: timedelta = timedelta(seconds=5),
        access: HttpAccess = _ANONYMOUS,
        max_connections: int = 100,
    ) -> None:
        self._url = url
        self._timeout = timeout.total_seconds()
        self._connect_timeout = connect_timeout.total_seconds()
        self._access = access
        self._max_connections = max_connections

    @cached_property
    def _session(self) -> aiohttp.ClientSession:
        return open_session(
            connect_timeout=self._connect_timeout, limit=self._max_connections, tls=self._access.tls
        )

    async def handle(self, request: HandlerRequest) -> HandlerResult:
        """See the port. Time-outs and broken connections are transient failures."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._call(request)
        except aiohttp.ConnectionTimeoutError:
            return HandlerResult.failed(f"time-out: no connection within {self._connect_timeout:g} s")
        except TimeoutError:
            return HandlerResult.failed(f"time-out: no answer within {self._timeout:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return HandlerResult.failed(why(error))

    async def close(self) -> None:
        """Close the connections."""
        if "_session" in self.__dict__:
            await self._session.close()

    async def _call(self, request: HandlerRequest) -> HandlerResult:
        headers = {
            "content-type": "application/json",
            "idempotency-key": str(request.message_id),
            "relay-attempt": str(request.attempt),
        }
        if request.correlation_id is not None:
            headers["x-correlation-id"] = str(request.correlation_id)
        headers |= self._access.headers(str(request.message_id), request.body)
        async with self._session.post(
            self._url, data=request.body, headers=headers, allow_redirects=False
        ) as response:
            if response.status in DONE:
                await _skip(response)
                return HandlerResult.from_status(response.status)
            return _refused(response.status, _reason(response), await _body(response))


def _reason(response: aiohttp.ClientResponse) -> str:
    """What the service says for operators, on purpose."""
    return printable(unquote(response.headers.get(REASON, "")))


def _refused(status: int, reason: str, body: bytes) -> HandlerResult:
    codes = "" if reason else answered(body)
    if codes and status == 422:
        codes = f"HTTP 422: {codes}"
    return HandlerResult.from_status(status, reason or codes, printable(body.decode("utf-8", "replace")))


def open_session(
    *, connect_timeout: float | None = None, limit: int = 100, tls: ssl.SSLContext | None = None
) -> aiohttp.ClientSession:
    """A client for calls between services, with at most ``limit`` connections at once, to be closed at the end.

    Without ``tls`` it trusts whom the system trusts.

    It knows no proxies, credentials or cookies, and has no other time-out than that of a connection.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=limit, keepalive_timeout=_IDLE, ssl=True if tls is None else tls),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=_HEADERS,
        auto_decompress=False,
        max_line_size=_MAX_ANSWER,
        max_field_size=_MAX_ANSWER,
        trust_env=False,
    )


def why(error: aiohttp.ClientError | OSError) -> str:
    """Why a call has no answer. It names neither the URL, which may hold a secret, nor what came instead."""
    match error:
        case aiohttp.ClientConnectorError():
            return f"ConnectError: {printable(str(error))}"
        case aiohttp.ClientResponseError():
            return "ProtocolError: what came is no HTTP"
        case aiohttp.ServerDisconnectedError():
            return "ServerDisconnectedError: the connection was closed before an answer"
        case aiohttp.InvalidURL():
            return "InvalidURL: the address is none"
        case aiohttp.ClientPayloadError():
            return "ClientPayloadError: the answer is not complete"
    strerror = getattr(error, "strerror", None)
    return f"{type(error).__name__}: {strerror or 'the connection broke'}"


async def _skip(response: aiohttp.ClientResponse) -> None:
    """Read past a body that nobody needs, or the connection could not be used again.

    The handler has said that it is done, so what comes of the rest changes nothing.
    """
    if response.content.is_eof():
        return
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(_SKIP):
            await _body(response)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = b""
    while len(body) <= _MAX_ANSWER and (chunk := await response.content.read(_MAX_ANSWER)):
        body += chunk
    return body[:_MAX_ANSWER]


async def read_detail(response: aiohttp.ClientResponse) -> str:
    """All that an answer says, up to a bound: its header ``Relay-Reason`` or its body."""
    return _reason(response) or printable((await _body(response)).decode("utf-8", "replace"))


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
