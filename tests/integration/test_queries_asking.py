"""Those who ask queries of other services: what they wait for, what they leave behind, and how plain code asks."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from typing import Any

import pytest

from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.query_client import RemoteQueries
from relay.bus import Nothing, RequestContext, Some, carry
from relay.bus.errors import NoResponder, QueryTimeout
from relay.devstack import NatsServer
from relay.devstack.ports import free_port
from relay.domain.errors import BrokerUnreachable, InvalidKey
from tests.integration.asking import LoopView, Service
from tests.pages import code

pytestmark = pytest.mark.anyio

#: The module that the page prints for Flask, Django and scripts.
PLAIN = code("docs/how-to/queries.md", "python", 2)


@pytest.fixture
async def running(nats_server: NatsServer) -> AsyncIterator[Service]:
    service = Service(nats_server.url)
    async with service.answering():
        yield service


async def test_a_time_out_covers_the_wait_for_a_connection() -> None:
    async with RemoteQueries(f"nats://127.0.0.1:{free_port()}") as queries:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(BrokerUnreachable):
            await queries.ask("sr.queries.loop.find", timeout=0.1)
    # Otherwise a connection is waited for two seconds.
    assert asyncio.get_running_loop().time() - begun < 1.9


@pytest.mark.parametrize("seconds", [float("inf"), 1e12])
async def test_the_one_who_asks_may_wait_without_end(running: Service, seconds: float) -> None:
    async with running.asking() as queries:
        assert await queries.ask(running.find, {"loop_id": "none"}, timeout=seconds) == Nothing()


async def test_who_asks_over_a_given_connection_leaves_nothing_behind(nats_server: NatsServer) -> None:
    connection = NatsConnection(nats_server.url)
    for _ in range(3):
        async with RemoteQueries(connection) as queries:
            with pytest.raises(NoResponder):
                await queries.ask("sr.queries.nobody")
            assert len(connection.on_down) == 1
    assert connection.on_down == []
    assert (await connection.client()).is_connected
    await connection.close()


@pytest.mark.parametrize("id", ["x" * 201, "x" * 2_000_000, "a\nb", "\ud800", ""])
async def test_an_id_that_cannot_be_sent_costs_other_queries_nothing(running: Service, id: str) -> None:
    async with running.asking() as queries:
        other = asyncio.create_task(queries.ask(running.find, {"loop_id": "hangs"}))
        with RequestContext(correlation_id=id).use(), pytest.raises(InvalidKey, match="Relay-Correlation-Id"):
            await queries.ask(running.find, {"loop_id": "x"})
        running.go_on.set()
        assert (await other).unwrap()["loop_id"] == "hangs"


async def test_the_page_asks_what_it_answers(nats_server: NatsServer) -> None:
    service, module = Service(nats_server.url, prefix="sr"), {"LoopView": LoopView, "__name__": "sr.queries"}
    exec(compile(code("docs/how-to/queries.md", "python", 3), "queries.md", "exec", dont_inherit=True), module)
    asked = code("docs/how-to/queries.md", "python", 1).replace("nats://localhost:4222", nats_server.url)
    asking = compile(asked, "queries.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    for bus, found in ((module["queries"], None), (service.bus, LoopView(loop_id="loop_1", goal="authenticate"))):
        service.bus = bus
        async with service.answering():
            names = {"LoopView": LoopView}
            await eval(asking, names)
            assert names.get("view") == found


# --- plain code ---


@pytest.fixture
def asking(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("NATS_URL", nats_server.url)
    module: dict[str, Any] = {}
    exec(compile(PLAIN, "queries.md", "exec"), module)
    return module


async def test_plain_code_asks_from_many_threads(running: Service, asking: dict[str, Any]) -> None:
    ask = asking["ask"]

    def one(number: int) -> object:
        return ask(running.find, {"loop_id": str(number)}, answer=LoopView)

    found = await asyncio.gather(*(asyncio.to_thread(one, number) for number in range(20)))
    assert found == [Some(LoopView(loop_id=str(n), goal="authenticate")) for n in range(20)]
    with pytest.raises(NoResponder):
        await asyncio.to_thread(ask, "sr.queries.nobody")
    with pytest.raises(QueryTimeout):
        await asyncio.to_thread(ask, running.inspect, {"what": "hangs"}, timeout=0.2)


async def test_plain_code_asks_in_its_request_context(running: Service, asking: dict[str, Any]) -> None:
    with RequestContext(correlation_id="req_1").use():
        await asyncio.to_thread(carry(asking["ask"]), running.inspect)
    assert running.seen[0].correlation_id == "req_1"


FORKED = """
import os, sys
exec(sys.argv[1])
print(ask(sys.argv[2], {"loop_id": "none"}), flush=True)
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(ask(sys.argv[2], {"loop_id": "none"}), flush=True)
"""


async def test_plain_code_asks_in_a_forked_process_too(running: Service, nats_server: NatsServer) -> None:
    """A server such as gunicorn imports the application, and may ask, before it forks."""
    args = [sys.executable, "-c", FORKED, PLAIN, running.find]
    environment = {**os.environ, "NATS_URL": nats_server.url}
    program = await asyncio.create_subprocess_exec(*args, stdout=PIPE, env=environment, start_new_session=True)
    try:
        said, _ = await asyncio.wait_for(program.communicate(), 30)
    except TimeoutError:
        os.killpg(program.pid, signal.SIGKILL)
        raise
    assert (program.returncode, said.split()) == (0, [b"Nothing()"] * 2)
