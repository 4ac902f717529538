"""Lists as lines of JSON: all that its pages have, one page after the other, so that no more is in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias

from fastapi import Depends, Request
from pydantic_core import to_jsonable_python
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from relay.ops.api.access import NotAdmitted
from relay.ops.api.answers import MAKING

LINES: Final = "application/x-ndjson"
#: How many rows are read at once.
READ: Final = 500
#: What such an answer is, for the OpenAPI document.
IN_LINES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {LINES: {"schema": {"type": "string", "description": "With `Accept: application/x-ndjson`."}}}
    }
}
#: Gives the rows behind a place, and the next place; None at the end. It begins at None.
Pages: TypeAlias = Callable[[Any], Awaitable[tuple[Sequence[Any], Any]]]


def _lined(request: Request) -> bool:
    return any(
        it.partition(";")[0].strip().lower() == LINES for it in request.headers.get("accept", "").split(",")
    )


#: Whether the caller wants lines.
Lined = Annotated[bool, Depends(_lined)]


class Parts(StreamingResponse):
    """An answer in parts. ``over`` is called when it was sent, or when its reader went away."""

    def __init__(
        self,
        parts: AsyncIterator[bytes],
        headers: Mapping[str, str],
        over: Callable[[], None],
        media_type: str = LINES,
    ) -> None:
        super().__init__(parts, 200, {"Cache-Control": "no-store", **headers}, media_type)
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()


async def in_lines(
    places: asyncio.Semaphore, pages: Pages, start: Any = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return all that pages have, as lines. A page that fails later breaks the connection, so no part looks whole.

    Raises NotAdmitted if there are too many such answers, and what the first page raises.
    """
    if places.locked():
        raise NotAdmitted(503, "BUSY", "too many lists are being downloaded", "ask again in a second")
    await places.acquire()
    try:
        first = await pages(start)
    except BaseException:
        places.release()
        raise
    return Parts(_parts(pages, *first), headers or {}, places.release)


async def _parts(pages: Pages, rows: Sequence[Any], following: Any) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    while True:
        yield await loop.run_in_executor(MAKING, _encoded, rows)
        if following is None:
            return
        rows, following = await pages(following)


def _encoded(rows: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(to_jsonable_python(it, inf_nan_mode="null")).encode() + b"\n" for it in rows)
