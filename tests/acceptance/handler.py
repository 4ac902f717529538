"""A handler service inside the test process: it answers as the test says and remembers every call."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from relay.devstack.ports import free_port

HANG = -1
"""A verdict: do not answer until the caller has given up."""


@dataclass(frozen=True)
class Call:
    """One request as the handler saw it; ``at`` is the loop's clock in seconds."""

    message_id: str
    body: dict[str, Any]
    headers: dict[str, str]
    at: float


@dataclass
class HandlerService:
    """``verdict(body, n)`` gives the status of the n-th call (from 1) for a message."""

    verdict: Callable[[dict[str, Any], int], int] = lambda _body, _n: 200
    calls: list[Call] = field(default_factory=list)
    #: Further headers of each answer, and its content.
    headers: dict[str, str] = field(default_factory=dict)
    said: Callable[[dict[str, Any]], Any] = lambda _body: None
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        app = Starlette(routes=[Route("/{path}", self._handle, methods=["POST"])])
        self._server = uvicorn.Server(
            uvicorn.Config(app, host="127.0.0.1", port=self.port, log_level="error", timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> HandlerService:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/handle"

    def count(self, message_id: object) -> int:
        """How often the handler was called for a message."""
        with self._lock:
            return self._counts[str(message_id)]

    def calls_for(self, message_id: object) -> list[Call]:
        with self._lock:
            return [call for call in self.calls if call.message_id == str(message_id)]

    async def _handle(self, request: Request) -> Response:
        body = json.loads(await request.body())
        identity = body["message_id"]
        with self._lock:
            self._counts[identity] += 1
            number = self._counts[identity]
            now = asyncio.get_running_loop().time()
            self.calls.append(Call(identity, body, dict(request.headers), now))
        status = await asyncio.to_thread(self.verdict, body, number)
        if status == HANG:
            while not await request.is_disconnected():  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.05)
            return Response(status_code=500)
        said = {"Relay-Reason": f"verdict {status}", **self.headers}
        return JSONResponse(self.said(body), status_code=status, headers=said)
