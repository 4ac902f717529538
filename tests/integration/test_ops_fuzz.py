"""Requests of every shape to every route of the HTTP API: it answers as its document says, and never fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator

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
from relay.settings import Settings
from tests.unit.ops_support import TOKENS, USERS

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
#: The same requests each time, and few enough for some seconds in all.
EXAMPLES = hypothesis.settings(max_examples=3, derandomize=True, deadline=None, database=None)
FUZZ = hypothesis.settings(EXAMPLES, suppress_health_check=list(hypothesis.HealthCheck))


@pytest.fixture
def url(database_url: str, nats_server: NatsServer, valkey: ValkeyServer) -> Iterator[str]:
    """The API in a thread, on real servers, for somebody who may do everything."""
    users = {"all": {**USERS["operator"], "payloads": True}}
    settings = Settings.model_validate(
        {
            "nats_url": nats_server.url,
            "redis_url": valkey.url,
            "contexts": {"sea": {"database_url": database_url}},
            "ops": {"users": users},
        }
    )
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(create_app(settings), port=port, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(30)


def test_every_route_answers_as_its_document_says(url: str) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['operator']}"}
    document = f"{url}/api/v1/openapi.json"
    schema = schemathesis.openapi.from_url(document, headers=headers, wait_for_schema=30)
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @hypothesis.given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
        @FUZZ
        def ask(case: schemathesis.Case) -> None:
            nonlocal asked
            if "context" in case.path_parameters and asked % 2:
                case.path_parameters["context"] = "sea"
            asked += 1
            case.call_and_validate(checks=CHECKS, headers=headers)

        ask()
    assert asked > 30
