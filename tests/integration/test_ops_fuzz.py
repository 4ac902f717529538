"""Requests of every shape to every route of the HTTP API: it answers as its document says, and never fails.

Every other request names a context, a queue, a job and rows that exist: names by chance only find 404.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import hypothesis
import pytest
import schemathesis
import uvicorn
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from relay.devstack import NatsServer, ValkeyServer
from relay.devstack.ports import free_port
from relay.ops.api.app import create_app
from tests.integration.ops_rows import Rows, real_rows
from tests.unit.ops_support import TOKENS
from tests.waiting import DEADLINE_S, wait_for

pytestmark = pytest.mark.anyio

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
#: The same requests each time, and few enough for some seconds in all.
EXAMPLES = hypothesis.settings(max_examples=4, derandomize=True, deadline=None, database=None)
FUZZ = hypothesis.settings(EXAMPLES, suppress_health_check=list(hypothesis.HealthCheck))


@pytest.fixture
async def rows(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer, tmp_path: Path
) -> AsyncIterator[Rows]:
    namespace = f"test-{uuid4().hex}"
    async with real_rows(database_url, nats_server.url, valkey.url, namespace, tmp_path) as rows:
        yield rows


@pytest.fixture
def url(rows: Rows) -> Iterator[str]:
    """The API in a thread, on real servers, for somebody who may do everything."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(create_app(rows.settings), port=port, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(30)


@pytest.mark.timeout(600)  # some hundred requests are made up, on a machine that may have other things to do
async def test_every_route_answers_as_its_document_says(url: str, rows: Rows) -> None:
    statuses = await asyncio.to_thread(fuzz, url, rows)
    assert sum(statuses.values()) > 60
    reads = {label for label, status in statuses if status == 200 and label.startswith("GET")}
    assert reads == {f"{method} {path}" for method, path in rows.requests() if method == "GET"}


def fuzz(url: str, rows: Rows) -> Counter[tuple[str, int]]:
    """Ask every route; returns how often each answered with which status."""
    headers = {"Authorization": f"Bearer {TOKENS['operator']}"}
    document = f"{url}/api/v1/openapi.json"
    wait_for("the document is made", lambda: httpx2.get(document, headers=headers, timeout=DEADLINE_S).is_success)
    schema = schemathesis.openapi.from_url(document, headers=headers, wait_for_schema=30, timeout=DEADLINE_S)
    statuses = Counter[tuple[str, int]]()
    for found in schema.get_all_operations():
        for case in cases(found.ok(), rows):
            answer = case.call_and_validate(checks=CHECKS, headers=headers)
            statuses[case.operation.label, answer.status_code] += 1
    return statuses


def cases(operation: Any, rows: Rows) -> list[schemathesis.Case]:
    """Requests by chance, every other one with names that exist; then those that surely find rows."""
    known, found = rows.names(operation.path), list[schemathesis.Case]()

    @hypothesis.given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    @FUZZ
    def collect(case: schemathesis.Case) -> None:
        if len(found) % 2 == 0:
            case.path_parameters |= known
        found.append(case)

    collect()
    part = "query" if operation.method.upper() == "GET" else "body"
    asked = rows.requests()[operation.method.upper(), operation.path]
    return [*found, *(operation.Case(path_parameters=known, **{part: it}) for it in asked)]
