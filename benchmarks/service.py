"""``python -m benchmarks.service PORT``: a handler service that answers 200 to everything."""

from __future__ import annotations

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


async def handle(request: Request) -> Response:
    """Read the event as any handler would."""
    await request.json()
    return Response(status_code=200)


app = Starlette(routes=[Route("/handle", handle, methods=["POST"]), Route("/healthz", lambda _: Response())])

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
