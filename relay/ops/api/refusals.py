"""Why a request is not valid, in words that say what is permitted; never with the values that it had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response

from relay.bus.http import json_response
from relay.ops.api.document import described, operation_id, operations


def problem(code: str, message: str, field: str | None = None, hint: str | None = None) -> dict[str, Any]:
    """The body of an error."""
    return {"error": {"code": code, "message": message, "field": field, "hint": hint}}


async def refused(request: Request, error: Exception) -> Response:
    """Name the first field that is wrong, and why: 422, or 400 for a body that is no JSON."""
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = error.errors()[0]
    if first["type"] == "json_invalid":
        return json_response(problem("INVALID_REQUEST", "the body is no JSON that can be read"), 400)
    place: Sequence[Any] = first["loc"]
    field = ".".join(str(part) for part in place[1:]) or str(place[0])
    if first["type"] != "extra_forbidden":
        return json_response(problem("INVALID_REQUEST", first["msg"], field), 422)
    names = permitted(request, await described(request.app), place)
    hint = f"permitted: {', '.join(sorted(names))}" if names else None
    return json_response(problem("INVALID_REQUEST", "there is no such field", field, hint), 422)


def permitted(request: Request, document: Mapping[str, Any], place: Sequence[Any]) -> list[str]:
    """The names beside one that is not permitted. ``place``: query or body, then the way to it."""
    name = operation_id(request.scope["route"])
    operation = next(it for _, _, it in operations(document) if it["operationId"] == name)
    if place[0] == "query":
        return [it["name"] for it in operation.get("parameters", ()) if it["in"] == "query"]
    schemas, schema = document["components"]["schemas"], _body(operation)
    for step in place[1:-1]:
        schema = _resolved(schema, schemas).get("properties", {}).get(step, {})
    return [*_resolved(schema, schemas).get("properties", {})]


def _body(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = operation["requestBody"]["content"]["application/json"]["schema"]
    return schema


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of an object behind references, and behind a choice between it and null."""
    found: Mapping[str, Any] = next((it for it in schema.get("anyOf", ()) if "$ref" in it), schema)
    return schemas[found["$ref"].rpartition("/")[2]] if "$ref" in found else found
