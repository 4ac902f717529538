"""How many requests are answered at once, how large they are, and how long each may take."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relay.ops.api.access import OPEN, READING, NotAdmitted


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Times are in seconds, sizes in bytes.

    ``requests``: how many are answered at once. ``answer_s``: how long a question may take until its answer
    begins; a deed takes as long as its rows need. ``body_bytes``, ``body_s``: of the body of a request.
    ``bodies``: how many are read at once; beyond these, the one that has taken longest is refused.
    """

    requests: int = 64
    answer_s: float = 30.0
    body_bytes: int = 1024**2
    body_s: float = 30.0
    bodies: int = 64


class Turns:
    """An ASGI application around another one that answers only so much at once. Raises NotAdmitted."""

    def __init__(self, app: ASGIApp, limits: RequestLimits) -> None:
        self._app = app
        self._limits = limits
        self._answered = 0
        self._reading: dict[asyncio.Timeout, None] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Probes are always answered."""
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        # All of it first: who sends slowly takes no place from others.
        receive = await self._received(Headers(scope=scope), receive)
        if self._answered >= self._limits.requests:
            text = f"{self._answered} requests are being answered"
            raise NotAdmitted(503, "BUSY", text, "ask again in a second")
        await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, which has its place until the answer begins: who reads slowly takes none either."""
        begun = False
        self._answered += 1

        async def tell(message: Message) -> None:
            nonlocal begun
            if not begun:
                begun = True
                self._answered -= 1
                limit.reschedule(None)
            await send(message)

        try:
            async with asyncio.timeout(self._limits.answer_s if scope["method"] in READING else None) as limit:
                await self._app(scope, receive, tell)
        except TimeoutError:
            if not limit.expired():
                raise
            text = f"the answer took more than {self._limits.answer_s:g} s"
            raise NotAdmitted(503, "TOO_SLOW", text, "ask for less, or use the command of relay") from None
        finally:
            if not begun:
                self._answered -= 1

    async def _received(self, headers: Headers, receive: Receive) -> Receive:
        """Read the body of a request, and return what gives it again."""
        length, most = headers.get("content-length", "0"), self._limits.body_bytes
        if "transfer-encoding" in headers or not length.isdecimal() or int(length) > most:
            raise NotAdmitted(413, "TOO_LARGE", f"a body has a length, of {most} bytes at most")
        if not int(length):
            return receive
        parts = [await self._read(receive)]

        async def again() -> Message:
            return parts.pop() if parts else await receive()

        return again

    async def _read(self, receive: Receive) -> Message:
        if len(self._reading) >= self._limits.bodies:
            oldest = next(iter(self._reading))
            del self._reading[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())
        parts, limit = list[bytes](), asyncio.timeout(self._limits.body_s)
        self._reading[limit] = None
        try:
            async with limit:
                while (message := await receive()).get("more_body"):
                    parts.append(message["body"])
        except TimeoutError:
            raise NotAdmitted(408, "TOO_SLOW", "the body of the request did not come in time") from None
        finally:
            self._reading.pop(limit, None)
        if message["type"] == "http.request":
            message["body"] = b"".join([*parts, message["body"]])
        return message
