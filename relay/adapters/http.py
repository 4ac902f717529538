"""HttpEventHandler: PORT-047-005 over HTTP (SDS-047 §12).

The URL comes from configuration only. Redirects are not followed. The answer is read up to a limit. The whole call
ends within the time-out. When a secret is set, requests are signed as in Standard Webhooks.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

import aiohttp

from relay.domain.actor import ACTOR_ID, ACTOR_KIND
from relay.domain.disclosure import answered, printable
from relay.domain.identity import CORRELATION_ID, ID, shown
from relay.domain.model import DONE, Away, HandlerResult
from relay.domain.quoting import quoted
from relay.domain.retry_after import RETRY_AFTER, asked_wait
from relay.domain.traceparent import TRACEPARENT
from relay.ports import HandlerRequest

_MAX_ANSWER_BYTES: Final = 65_536
#: A body is sent in pieces of so many bytes.
_PIECE_BYTES: Final = 1024**2
#: The header in which a service tells operators why it refuses a message. It may be percent-encoded.
REASON: Final = "Relay-Reason"
#: How long an idle connection is kept, in seconds. Usual servers close theirs later (gunicorn 2 s, uvicorn 5 s): a
#: request sent while the server closes the connection counts as a failed attempt.
_KEEP_ALIVE_S: Final = 1.5
#: How long the body of a successful answer may take, in seconds.
_DRAIN_TIMEOUT_S: Final = 0.2
#: Asks for answers that are not compressed, so that a small answer cannot unpack to a huge one.
_HEADERS: Final = {"user-agent": "jetrelay", "accept-encoding": "identity"}
AUTHORIZATION: Final = "authorization"
#: The signature of headers. Standard Webhooks signs only the body, and its libraries do not read this.
SIGNATURE: Final = "relay-signature"
_ATTEMPT: Final = "relay-attempt"
#: The headers that a handler may trust, in the order in which they are signed.
VOUCHED: Final = (ACTOR_ID.lower(), ACTOR_KIND.lower(), _ATTEMPT)
#: The header by which a service recognises copies of a message. It may be percent-encoded.
IDEMPOTENCY_KEY: Final = "idempotency-key"


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """The credentials of a call, and the certificates it trusts; see the settings of the same names."""

    signing_secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_header: str = AUTHORIZATION
    tls: ssl.SSLContext | None = None

    def headers(
        self, id: str, body: bytes | bytearray, vouched: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """The headers that prove who sends a call. ``id`` is the same for every repeat.

        ``vouched``: the other headers of a call of a handler; those that it may trust are signed, too.
        """
        headers, now = self.authorization(), int(time.time())
        if self.signing_secret is not None:
            headers |= sign(self.signing_secret, id, now, body)
            if vouched is not None:
                headers[SIGNATURE] = sign_headers(self.signing_secret, id, now, vouched)
        return headers

    def authorization(self) -> dict[str, str]:
        """The authorization header, the same for every call. Empty without a token."""
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
            detail = f"time-out: no connection within {self._connect_timeout:g} s"
            return HandlerResult.failed(detail, away=Away.SURELY)
        except TimeoutError:
            return HandlerResult.failed(f"time-out: no answer within {self._timeout:g} s", away=Away.PERHAPS)
        except aiohttp.ClientConnectorError as error:
            # Nobody has got the request, so it is not the message's fault.
            return HandlerResult.failed(why(error), away=Away.SURELY)
        except (aiohttp.ClientError, OSError) as error:
            return HandlerResult.failed(why(error), away=Away.PERHAPS)

    async def close(self) -> None:
        """Close the connections."""
        if "_session" in self.__dict__:
            await self._session.close()

    async def _call(self, request: HandlerRequest) -> HandlerResult:
        key = quoted(request.idempotency_key or str(shown(request.message_id, request.originals, ID)))
        headers = {
            "content-type": "application/json",
            IDEMPOTENCY_KEY: key,
            _ATTEMPT: str(request.attempt),
        }
        if request.correlation_id is not None:
            correlation_id = shown(request.correlation_id, request.originals, CORRELATION_ID)
            headers["x-correlation-id"] = quoted(str(correlation_id))
        if request.actor is not None:
            headers |= {name.lower(): value for name, value in request.actor.headers.items()}
        if request.traceparent is not None:
            headers[TRACEPARENT] = request.traceparent
        headers |= self._access.headers(key, request.body, headers)
        body: Any = request.body
        if len(body) > _PIECE_BYTES:
            headers["content-length"], body = str(len(body)), _pieces(body)
        async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
            if response.status in DONE:
                await _skip(response)
                return HandlerResult.from_status(response.status)
            return _refused(response, await _body(response))


async def _pieces(body: bytes | bytearray) -> AsyncIterator[memoryview]:
    """A large body piece by piece: as a whole, the connection would copy it."""
    whole = memoryview(body)
    for begin in range(0, len(whole), _PIECE_BYTES):
        yield whole[begin : begin + _PIECE_BYTES]


def key_of(header: str | None, message_id: str) -> str:
    """The text that identifies a message: the ``Idempotency-Key`` of its call, else its id."""
    return message_id if header is None else unquote(header)


def _reason(response: aiohttp.ClientResponse) -> str:
    """What the service tells operators in its header `REASON`."""
    return printable(unquote(response.headers.get(REASON, "")))


def _refused(response: aiohttp.ClientResponse, body: bytes) -> HandlerResult:
    status, reason = response.status, _reason(response)
    codes = "" if reason else answered(body)
    wait = asked_wait(response.headers.getall(RETRY_AFTER, ()), datetime.now(UTC))
    return HandlerResult.from_status(status, reason or codes, printable(body.decode("utf-8", "replace")), wait)


def open_session(
    *, connect_timeout: float | None = None, limit: int = 100, tls: ssl.SSLContext | None = None
) -> aiohttp.ClientSession:
    """A client for calls between services, with at most ``limit`` connections at once. The caller closes it.

    Without ``tls`` it trusts the certificates that the system trusts. It uses no proxies, no stored credentials
    and no cookies. Its only time-out is ``connect_timeout``, in seconds.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=limit, keepalive_timeout=_KEEP_ALIVE_S, ssl=True if tls is None else tls
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=_HEADERS,
        auto_decompress=False,
        max_line_size=_MAX_ANSWER_BYTES,
        max_field_size=_MAX_ANSWER_BYTES,
        trust_env=False,
    )


def why(error: aiohttp.ClientError | OSError) -> str:
    """Why a call has no answer. The text leaves out the URL, which may hold a secret, and any data received."""
    match error:
        case aiohttp.ClientConnectorError():
            return f"ConnectError: {printable(_cause(error) + str(error))}"
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


def _cause(error: aiohttp.ClientConnectorError) -> str:
    """What the system says about a failed connection, such as ``Connection refused: ``; "" if it says nothing."""
    number = error.os_error.errno or 0
    return "" if isinstance(error, aiohttp.ClientSSLError) or number <= 0 else f"{os.strerror(number)}: "


async def _skip(response: aiohttp.ClientResponse) -> None:
    """Read the body of an answer without using it, so that the connection can be used again.

    The status has already said that the handler is done. An error here changes nothing.
    """
    if response.content.is_eof():
        return
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(_DRAIN_TIMEOUT_S):
            await _body(response)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = b""
    while len(body) <= _MAX_ANSWER_BYTES and (chunk := await response.content.read(_MAX_ANSWER_BYTES)):
        body += chunk
    return body[:_MAX_ANSWER_BYTES]


async def read_detail(response: aiohttp.ClientResponse) -> str:
    """The text of an answer, up to a bound: its header ``Relay-Reason``, else its body."""
    return _reason(response) or printable((await _body(response)).decode("utf-8", "replace"))


def sign(secret: str, message_id: str, timestamp: int, body: bytes | bytearray) -> dict[str, str]:
    """The Standard Webhooks headers: HMAC-SHA256 over ``id.timestamp.body``.

    ``secret`` may hold several keys separated by spaces, for rotation; each signs. A key with the prefix
    ``whsec_`` is base64. Any other key is used as it is.
    """
    signatures = []
    for key in secret.split():
        digest = hmac.new(_key(key), f"{message_id}.{timestamp}.".encode(), hashlib.sha256)
        digest.update(body)
        signatures.append(base64.b64encode(digest.digest()).decode())
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def sign_headers(secret: str, message_id: str, timestamp: int, headers: Mapping[str, str]) -> str:
    """The value of `SIGNATURE`: HMAC-SHA256 of lines: v2, the id, the timestamp, each header of `VOUCHED`.

    A header that is not there is an empty line. Each key of ``secret`` signs, as in `sign`.
    """
    lines = ["v2", message_id, str(timestamp), *(headers.get(name, "") for name in VOUCHED)]
    content = "\n".join(lines).encode()
    digests = (hmac.new(_key(key), content, hashlib.sha256).digest() for key in secret.split())
    return " ".join(f"v2,{base64.b64encode(digest).decode()}" for digest in digests)


def _key(secret: str) -> bytes:
    return base64.b64decode(secret[6:]) if secret.startswith("whsec_") else secret.encode()
