"""The request context of an HTTP request: reads ``X-Correlation-ID`` and ``traceparent``, answers with the id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import replace
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from relay.bus.context import RequestContext, next_span
from relay.domain.errors import InvalidKey
from relay.domain.identity import Id, check_id
from relay.domain.quoting import quoted
from relay.domain.traceparent import TRACEPARENT

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADER: Final = b"x-correlation-id"
_TRACEPARENT: Final = TRACEPARENT.encode()


class RequestContextMiddleware:
    """An ASGI application around another, such as FastAPI: ``app = RequestContextMiddleware(FastAPI())``.

    Each request runs in a context with the correlation id of its header (it may be percent-encoded), and the
    response names the id. An id that is missing, given twice or not allowed is replaced by a new one. A request
    with a valid ``traceparent`` is a new span of its trace. Put it around the whole application, not in its list
    of middleware, so that it covers error handlers too.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Other scopes pass unchanged."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        context = _read(scope["headers"])

        async def tell(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept"):
                kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() != HEADER]
                message["headers"] = [*kept, (HEADER, quoted(str(context.correlation_id)).encode())]
            await send(message)

        with context.use():
            await self._app(scope, receive, tell)


def _read(headers: Iterable[tuple[bytes, bytes]]) -> RequestContext:
    given = [*headers]
    context = replace(RequestContext.begin(), traceparent=next_span(_only(_TRACEPARENT, given)))
    id = _id(_only(HEADER, given))
    return context if id is None else replace(context, correlation_id=id)


def _id(text: str | None) -> Id | None:
    """The id in a header; None if there is no valid one."""
    try:
        return None if text is None else check_id(unquote(text), "correlation_id").value
    except InvalidKey:
        return None


def _only(header: bytes, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The value of a header that was given once."""
    found = [value for name, value in headers if name.lower() == header]
    return found[0].decode(errors="replace") if len(found) == 1 else None
