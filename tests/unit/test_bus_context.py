"""The request context: where it begins, what it survives, and that every log line carries it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote
from uuid import UUID, uuid4

import pytest
from fastapi import FastAPI
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from relay.bus import Command, CommandBus, Query, QueryBus, RequestContext, RequestContextMiddleware, carry
from relay.domain.traceparent import Trace

TRACED = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}


class Look(Command[RequestContext]):
    pass


class Ask(Query[RequestContext]):
    pass


def look(_: object = None) -> RequestContext:
    return RequestContext.current()


# --- beginning ---


def test_a_command_without_a_request_begins_a_chain_of_its_own() -> None:
    commands, queries = CommandBus(), QueryBus()
    commands.handles(Look)(look)
    queries.handles(Ask)(look)
    contexts = [
        commands.dispatch(Look()).unwrap(),
        commands.dispatch(Look()).unwrap(),
        queries.ask(Ask()).unwrap(),
    ]
    assert len({context.correlation_id for context in contexts} - {None}) == 3
    assert RequestContext.current() == RequestContext()


def test_a_command_within_a_request_belongs_to_its_chain() -> None:
    commands = CommandBus()
    commands.handles(Look)(look)
    context = RequestContext(correlation_id=uuid4(), causation_id=uuid4())
    with context.use():
        assert commands.dispatch(Look()).unwrap() == context


# --- threads and tasks ---


def test_carry_takes_the_context_into_threads_of_a_pool() -> None:
    gate = threading.Barrier(3, timeout=30)

    def wait_and_look(number: int) -> tuple[int, RequestContext]:
        gate.wait()
        return number, RequestContext.current()

    context = RequestContext.begin()
    with ThreadPoolExecutor(3) as pool:
        with context.use():
            carried = carry(wait_and_look)
        assert list(pool.map(carried, range(3))) == [(number, context) for number in range(3)]
        assert pool.submit(look).result() == RequestContext()


def test_asyncio_tasks_and_threads_have_the_context_of_their_start() -> None:
    async def run() -> None:
        one, other = RequestContext.begin(), RequestContext.begin()
        with one.use():
            task = asyncio.create_task(asyncio.to_thread(look))
        with other.use():
            assert await task == one

    asyncio.run(run())


# --- HTTP ---


@pytest.fixture
def client() -> TestClient:
    api = FastAPI()

    @api.get("/plain")
    def plain() -> dict[str, Any]:
        return {"correlation": str(RequestContext.current().correlation_id)}

    @api.get("/traced")
    def traced() -> str | None:
        return RequestContext.current().traceparent

    @api.get("/async")
    async def asynchronous() -> dict[str, Any]:
        return plain()

    @api.get("/broken")
    def broken() -> None:
        raise RuntimeError("broken")

    @api.exception_handler(Exception)
    async def on_error(_request: object, _error: Exception) -> JSONResponse:
        return JSONResponse(plain(), 500)

    return TestClient(RequestContextMiddleware(api), raise_server_exceptions=False)


@pytest.mark.parametrize("path", ["/plain", "/async", "/broken"])
def test_the_callers_id_is_taken_and_given_back(client: TestClient, path: str) -> None:
    id = str(uuid4())
    response = client.get(path, headers={"X-Correlation-ID": id})
    assert (response.json(), response.headers["x-correlation-id"]) == ({"correlation": id}, id)


@pytest.mark.parametrize(
    ("sent", "id"),
    [
        ("req_01HQGX8K9JNPQR5MWTVYZ3F4AB", "req_01HQGX8K9JNPQR5MWTVYZ3F4AB"),
        ("{" + str(UUID(int=1)) + "}", "{" + str(UUID(int=1)) + "}"),
        ("r\u00e9q 1%", "r\u00e9q 1%"),
        ("r%C3%A9q%201%25", "r\u00e9q 1%"),
        ("x" * 200, "x" * 200),
    ],
)
def test_an_id_of_any_text_is_taken_and_given_back_as_a_header_can_hold_it(
    client: TestClient, sent: str, id: str
) -> None:
    response = client.get("/plain", headers={"X-Correlation-ID": sent.encode()})  # type: ignore[dict-item]
    assert response.json() == {"correlation": id}
    assert response.headers["x-correlation-id"].isascii()
    assert unquote(response.headers["x-correlation-id"]) == id


def test_an_id_is_the_same_in_the_service_that_is_called_with_it(client: TestClient) -> None:
    """Handlers are called with it percent-encoded, see HttpEventHandler."""
    first = client.get("/plain", headers={"X-Correlation-ID": "50%25 off"})
    again = client.get("/plain", headers={"X-Correlation-ID": first.headers["x-correlation-id"]})
    assert again.json() == {"correlation": "50% off"}


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("X-Correlation-ID", "")],
        [("X-Correlation-ID", "x" * 201)],
        [("X-Correlation-ID", "x" * 10_240)],
        [("X-Correlation-ID", "a%0Ab")],
        [("X-Correlation-ID", "a%00b")],
        [("X-Correlation-ID", "%20a")],
        [("X-Correlation-ID", "%FF")],
        [("X-Correlation-ID", str(UUID(int=1))), ("X-Correlation-ID", str(UUID(int=2)))],
    ],
)
def test_anything_but_one_id_that_can_be_is_replaced(client: TestClient, headers: list[tuple[str, str]]) -> None:
    response = client.get("/plain", headers=headers)
    id = response.headers["x-correlation-id"]
    assert response.json() == {"correlation": id}
    assert str(UUID(id)) == id
    assert id not in str(headers)
    assert client.get("/plain").headers["x-correlation-id"] != id


def test_a_request_is_a_new_span_of_the_trace_that_it_names(client: TestClient) -> None:
    first, second = (Trace.parse(client.get("/traced", headers=TRACED).json()) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.trace_id == second.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert len({first.span_id, second.span_id, "00f067aa0ba902b7"}) == 3


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("traceparent", "")],
        [("traceparent", "00-0-0-00")],
        [("traceparent", TRACED["traceparent"].upper())],
        [("traceparent", TRACED["traceparent"])] * 2,
    ],
)
def test_a_request_without_one_valid_header_has_no_trace(
    client: TestClient, headers: list[tuple[str, str]]
) -> None:
    response = client.get("/traced", headers=[*headers, ("X-Correlation-ID", str(UUID(int=1)))])
    assert (response.status_code, response.json()) == (200, None)
    assert response.headers["x-correlation-id"] == str(UUID(int=1))


def test_a_trace_survives_where_a_command_begins_the_chain() -> None:
    commands = CommandBus()
    commands.handles(Look)(look)
    with RequestContext(traceparent=TRACED["traceparent"]).use():
        seen = commands.dispatch(Look()).unwrap()
    assert seen.correlation_id is not None
    assert seen.traceparent == TRACED["traceparent"]


# --- log lines ---
