"""Large answers: made in a thread of its own, so that the event loop answers others; or sent from a file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import IO, Any, Final

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from relay.bus.http import json_response

#: One at a time: more would not be faster, and the event loop would wait for each of them.
MAKING: Final = ThreadPoolExecutor(1, "answers")
#: How much of a download is in memory at once.
_PART_BYTES: Final = 64 * 1024


class MadeApart(Response):
    """A response whose body ``make`` returns. It is called when the response is sent."""

    def __init__(
        self, make: Callable[[], bytes], status: int, headers: Mapping[str, str], media_type: str
    ) -> None:
        super().__init__(b"", status, headers, media_type)
        del self.headers["Content-Length"]
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Make the body, and send it."""
        self.body = await asyncio.get_running_loop().run_in_executor(MAKING, self._make)
        self.headers["Content-Length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def in_json(value: Any) -> Response:
    """As `json_response`, for what may be large."""
    return MadeApart(
        lambda: bytes(json_response(value).body), 200, {"Cache-Control": "no-store"}, "application/json"
    )


class Download(StreamingResponse):
    """A file as it is. ``over`` is called when it was sent, or when its reader went away."""

    def __init__(self, file: IO[bytes], over: Callable[[], None]) -> None:
        headers = {
            "Content-Length": str(os.fstat(file.fileno()).st_size),
            "Content-Disposition": 'attachment; filename="payload"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        parts = iter(partial(file.read, _PART_BYTES), b"")
        super().__init__(parts, 200, headers, "application/octet-stream")
        self._file, self._over = file, over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, and close it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()
            self._over()
