"""What results and errors of a bus are in HTTP, for users' own services (building block 2.1)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx2
import pytest
from fastapi import FastAPI
from starlette.responses import Response

from relay.bus import NOTHING, Failed, Ok, Some
from relay.bus.http import answer_errors, as_response, status_of
from relay.domain.errors import (
    BrokerUnreachable,
    DatabaseUnreachable,
    DomainError,
    InvalidRequest,
    OutboxFull,
    RelayError,
    SchemaMissing,
    TooMany,
    UnknownContext,
    WriteConflict,
)

pytestmark = pytest.mark.anyio


class Closed(DomainError):
    code = "CASE_CLOSED"


@pytest.mark.parametrize(
    ("result", "status", "code"),
    [
        (Failed(Closed("is closed", field="case", hint="open it")), 422, "CASE_CLOSED"),
        (NOTHING, 404, "NOTHING_FOUND"),
    ],
)
def test_what_was_refused_or_not_found(result: Any, status: int, code: str) -> None:
    response = as_response(result)
    assert (response.status_code, json.loads(response.body)["error"]["code"]) == (status, code)


def test_a_failure_says_which_field_and_what_to_do() -> None:
    body = json.loads(as_response(Failed(Closed("is closed", field="case", hint="open it"))).body)
    assert body == {"error": {"code": "CASE_CLOSED", "message": "is closed", "field": "case", "hint": "open it"}}


def test_values_become_json() -> None:
    id, at = UUID(int=7), datetime(2026, 1, 2, tzinfo=UTC)
    response = as_response(Ok({"id": id, "at": at, "rate": float("nan")}), ok=201)
    assert response.status_code == 201
    assert json.loads(response.body) == {"id": str(id), "at": "2026-01-02T00:00:00Z", "rate": None}
    assert json.loads(as_response(Some([1])).body) == [1]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnknownContext, 404),
        (InvalidRequest, 422),
        (TooMany, 409),
        (WriteConflict, 409),
        (DatabaseUnreachable, 503),
        (BrokerUnreachable, 503),
        (OutboxFull, 503),
        (SchemaMissing, 500),
        (RelayError, 500),
    ],
)
async def test_errors_have_a_status(error: type[RelayError], status: int) -> None:
    app = FastAPI()
    answer_errors(app)

    @app.get("/")
    async def ask() -> Response:
        raise error("no")

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as client:
        answer = await client.get("/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, error.code)
    assert ("retry-after" in answer.headers) == (status == 503)


def test_any_other_error_is_a_fault() -> None:
    assert status_of(ValueError("x")) == 500
