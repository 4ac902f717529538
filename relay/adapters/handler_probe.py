"""HttpProbe: calls a handler as `HttpEventHandler` does, and also wrongly on purpose, to see what it answers."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from typing import Final
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import aiohttp

from relay.adapters.http import HttpAccess, open_session, read_detail, sign, why
from relay.commands.check_handler import Answer, SignatureKind
from relay.domain.errors import HandlerUnreachable

_OLD: Final = timedelta(hours=1)
#: After this time a handler has begun with a request, in seconds.
_BEGUN_AFTER_S: Final = 0.1


class HttpProbe:
    """Calls ``POST url``. ``timeout`` is what the relay grants one call (``handler_timeout``)."""

    def __init__(self, url: str, *, timeout: timedelta, access: HttpAccess | None = None) -> None:
        self._url = url
        self._timeout = timeout.total_seconds()
        self._access = access or HttpAccess()

    @cached_property
    def _session(self) -> aiohttp.ClientSession:
        return open_session(tls=self._access.tls)

    async def close(self) -> None:
        """Close the connections."""
        if "_session" in self.__dict__:
            await self._session.close()

    async def reach(self) -> None:
        """See HandlerProbe."""
        try:
            async with asyncio.timeout(self._timeout):
                _, writer = await self._connect()
        except TimeoutError:
            raise self._nobody(f"no connection within {self._timeout:g} s") from None
        except OSError as error:
            raise self._nobody(why(error)) from error
        writer.close()

    def _nobody(self, reason: str) -> HandlerUnreachable:
        place = "{}:{}".format(*self._place)
        return HandlerUnreachable(f"nobody answers at {place}: {reason}", hint="start it, or mend the address")

    @property
    def _place(self) -> tuple[str | None, int]:
        url = urlsplit(self._url)
        return url.hostname, url.port or (443 if url.scheme == "https" else 80)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        encrypted = urlsplit(self._url).scheme == "https"
        return await asyncio.open_connection(*self._place, ssl=(self._access.tls or True) if encrypted else None)

    async def send(self, message_id: UUID, body: bytes, signature: SignatureKind = SignatureKind.GOOD) -> Answer:
        """See HandlerProbe."""
        headers = self._headers(message_id, body, signature)
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                return Answer(response.status, await read_detail(response))
        except TimeoutError:
            return Answer(None, f"no answer within {self._timeout:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Answer(None, why(error))

    async def give_up(self, message_id: UUID, body: bytes) -> None:
        """See HandlerProbe. Speaks HTTP by hand, to close the connection while the handler works."""
        url = urlsplit(self._url)
        headers = self._headers(message_id, body, SignatureKind.GOOD) | {
            "host": url.netloc,
            "content-length": str(len(body)),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        try:
            async with asyncio.timeout(self._timeout):
                reader, writer = await self._connect()
                target = urlunsplit(("", "", url.path or "/", url.query, ""))
                writer.write(f"POST {target} HTTP/1.1\r\n{head}\r\n".encode() + body)
                await writer.drain()
                # If we closed at once, the request might not reach the handler.
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), _BEGUN_AFTER_S)
                writer.close()
                await writer.wait_closed()
        except OSError:
            return

    def _headers(self, message_id: UUID, body: bytes, signature: SignatureKind) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "idempotency-key": str(message_id),
            "relay-attempt": "1",
            **self._access.authorization(),
        }
        secret = self._access.signing_secret
        if secret is None or signature is SignatureKind.MISSING:
            return headers
        key = "not the secret" if signature is SignatureKind.WRONG else secret
        age = _OLD.total_seconds() if signature is SignatureKind.OLD else 0
        return headers | sign(key, str(message_id), int(time.time() - age), body)
