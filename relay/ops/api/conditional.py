"""HEAD answers as GET without a body; an answer that has not changed is 304 to who has it already."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_JSON: Final = "application/json"


class _Enough(OSError):
    """Ends an answer of which only the head is wanted: as if its reader had gone away."""


class Conditional:
    """An ASGI application around another one, for questions. Each whole answer in JSON gets an ``ETag``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, Headers(scope=scope).getlist("if-none-match"), head=scope["method"] == "HEAD")
        with suppress(_Enough, ClientDisconnect):
            await self._app({**scope, "method": "GET"}, receive, answer.tell)


class _Answer:
    """Sends an answer: its head when it is known whether the body follows at once."""

    def __init__(self, send: Send, known: Sequence[str], *, head: bool) -> None:
        self._send, self._head = send, head
        self._known = {it.strip().removeprefix("W/") for line in known for it in line.split(",")}
        self._start: Message | None = None

    async def tell(self, message: Message) -> None:
        """Take a part of the answer."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._start is not None:
            start, self._start = self._start, None
            headers = MutableHeaders(raw=start["headers"])
            if start["status"] == 200 and not more and headers.get("content-type") == _JSON:
                tag = headers["ETag"] = f'"{blake2b(body, digest_size=12).hexdigest()}"'
                if self._known & {tag, "*"}:
                    start, body = {**start, "status": 304}, b""
                    del headers["Content-Length"], headers["Content-Type"]
            await self._send({**start, "headers": headers.raw})
        if not self._head:
            await self._send({**message, "body": body})
            return
        await self._send({"type": "http.response.body", "body": b""})
        if more:
            raise _Enough
