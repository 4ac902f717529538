"""HttpEventHandler and TLS: a service that cannot prove who it is gets no event.

The certificate in ``localhost.pem`` signs itself, is for ``localhost`` alone, and protects nothing.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from relay.adapters.http import HttpEventHandler
from relay.domain.model import Verdict
from tests.integration.http_service import Service, answering, request

pytestmark = pytest.mark.anyio

CERTIFICATE = Path(__file__).with_name("localhost.pem")
#: Calls the service as a worker does that was started with this environment.
CALL = """
import asyncio, sys
from relay.adapters.http import HttpEventHandler
from tests.integration.http_service import request

async def call():
    handler = HttpEventHandler(sys.argv[1])
    result = await handler.handle(request())
    await handler.close()
    print(result.verdict.name, result.detail)

asyncio.run(call())
"""


@asynccontextmanager
async def serving() -> AsyncIterator[Service]:
    service, context = Service(answering("200 OK")), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0, ssl=context)
    service.port = server.sockets[0].getsockname()[1]
    try:
        yield service
    finally:
        server.close()


async def called(url: str) -> str:
    """What a process that trusts the certificate gets to hear."""
    environment = {**os.environ, "SSL_CERT_FILE": str(CERTIFICATE), "PYTHONPATH": str(Path(__file__).parents[2])}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CALL, url, env=environment, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output.decode()


async def test_a_certificate_that_nobody_vouches_for_is_refused_and_the_event_tried_again() -> None:
    async with serving() as service:
        handler = HttpEventHandler(f"https://localhost:{service.port}/handle")
        result = await handler.handle(request())
        await handler.close()
    assert (result.verdict, service.seen) == (Verdict.TRANSIENT, [])
    assert "certificate" in result.detail


async def test_a_certificate_is_trusted_that_the_environment_vouches_for() -> None:
    async with serving() as service:
        assert await called(f"https://localhost:{service.port}/handle") == "PROCESSED \n"
        assert len(service.seen) == 1


async def test_a_trusted_certificate_of_another_host_is_refused() -> None:
    async with serving() as service:
        told = await called(f"https://127.0.0.1:{service.port}/handle")
    assert told.startswith("TRANSIENT ")
    assert "127.0.0.1" in told
    assert not service.seen
