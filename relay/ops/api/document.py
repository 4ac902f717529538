"""The OpenAPI document: what the framework makes of the routes, and what a generator of clients needs besides.

A field is described where people read about it: in the text of its model, as ``name``: meaning.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

#: What stands in a text about a field, up to the next field or the end of the sentence.
_ABOUT: Final = re.compile(r"``(\w+)``: (.+?)(?=[.;] |\.?$)")
#: How deep examples are: a step has steps.
_DEEP: Final = 3
#: Fields that mean the same in every model.
_COMMON: Final[Mapping[str, str]] = {
    "id": "The id.",
    "context": "A context of relay.toml.",
    "name": "The name.",
    "kind": "What it is.",
    "state": "What it does now, or how far it is.",
    "status": "Only rows in these states.",
    "note": "Why, for the audit log.",
    "all": "All that allow the action.",
    "limit": "At most so many.",
    "offset": "How many entries lie before the part.",
    "before": "`next` of the page above.",
    "after": "`next` of the page above.",
    "since": "Not before this time.",
    "until": "Before this time.",
    "code": "The stable code.",
    "server": "Its kind and address, without a password.",
    "healthy": "Whether everything that depends on it can work.",
    "milliseconds": "How long it took to answer.",
    "detail": "What it is, if nothing is wrong.",
    "count": "How many there are.",
    "total": "How many there are in all.",
    "dead": "How many wait for an operator.",
    "waiting": "How many wait.",
    "error": "What is wrong.",
    "reason": "Why.",
    "subscription": "A subscription of the context.",
    "queue": "A queue of the list.",
    "payload": "Also the beginning of the payload.",
    "host": "The name of the machine.",
    "pid": "The number of the process.",
    "version": "The release that it runs.",
    "schedule": "When it runs.",
    "oldest_at": "When the oldest of them came.",
    "waiting_age_seconds": "For how long the oldest that can go on has waited.",
    "failed_attempts": "How many of those that wait were tried more than three times.",
    "held": "How many an operator has set aside.",
    "estimated": "Whether the numbers are estimates.",
    "rows": "How many rows.",
    "number": "The number.",
    "size": "The size in bytes.",
    "file": "The name of the file.",
    "sha256": "The hash of the compressed file.",
    "first_id": "The id of the first row.",
    "first_at": "When the first row ended.",
    "last_id": "The id of the last row.",
    "last_at": "When the last row ended.",
    "messages": "How many messages it holds.",
    "size_bytes": "How much it holds.",
    "first_seq": "The sequence of its first message.",
    "last_seq": "The sequence of its last message.",
    "exists": "Whether it exists.",
    "subjects": "The subjects that it takes.",
    "consumers": "How far its consumers have come.",
    "durable": "The name of the consumer.",
    "unacknowledged": "How many are delivered and not acknowledged.",
    "redelivered": "How many were delivered again.",
    "field": "The setting that differs.",
    "expected": "What it must be.",
    "actual": "What it is.",
    "changeable": "Whether it can be changed without making it again.",
    "severity": "How bad it is.",
    "text": "What is wrong.",
    "usage": "What a worker does.",
    "crew": "What a supervisor does.",
    "silent_seconds": "For how long it has said nothing.",
    "listens": "The contexts whose hints it hears.",
    "release": "The release of the application.",
    "threads": "How many threads it has.",
    "busy": "How many of them are taken.",
    "doing": "How many jobs of each name run.",
    "least": "The fewest workers.",
    "most": "The most workers.",
    "wanted": "How many it wants.",
    "running": "How many run.",
    "delayed": "How many are to be begun later.",
    "in_flight": "How many workers have fetched and not acknowledged.",
    "action": "What was done or asked.",
    "attempts": "How often it was tried.",
    "details": "More about it.",
    "archived": "Whether it was found in the archive.",
    "children": "The steps that it caused.",
    "at": "When it began.",
    "ended": "When it ended.",
    "took": "How long it took, in seconds.",
    "unfinished": "How many messages are not finished.",
    "max_inbox": "How many it may hold.",
    "actor": "Who.",
    "share": "The part of the queue that it is in.",
    "created_at": "When it was made.",
    "args": "Names and ids that it is about.",
    "requested_at": "When it was first asked for.",
    "ids": "These.",
    "filter": "What a filter finds.",
    "dry_run": "Only count, and change nothing.",
    "archive": "Also search the archives, which may take long.",
}
_BEARER: Final = "A token of `ops.users`. None is needed on this machine while there are no users."
_SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": _BEARER},
    "basic": {"type": "http", "scheme": "basic", "description": "The token as the password, with any name."},
}
TAGS: Final = [
    {
        "name": "events",
        "description": "What services wrote, and whether it is in the stream.",
    },
    {"name": "inbox", "description": "What arrived for the handlers of a context, and how far each message is."},
    {"name": "dead letters", "description": "Messages that could not be handled. Each waits for a decision."},
    {"name": "tasks", "description": "Work that services do later."},
    {"name": "contexts", "description": "The rest of a context: parked keys, the schedule, the audit log."},
    {"name": "archive", "description": "Rows that were moved to files: verify, restore, replay."},
    {"name": "queues", "description": "Jobs in Redis."},
    {"name": "all contexts", "description": "Lists over all contexts at once."},
    {"name": "system", "description": "All contexts at once, the life of a message, what is wrong, who works."},
    {"name": "probes", "description": "For whoever starts and stops processes. They need no token."},
]


_MAKING: Final = Lock()


def operation_id(route: APIRoute) -> str:
    """The name of a route, which no other route has."""
    return route.name.removeprefix("_")


async def described(app: FastAPI) -> dict[str, Any]:
    """Return the document; others are answered while it is made, which takes over a second."""
    known = app.openapi_schema
    return await asyncio.to_thread(document_of, app) if known is None else known


def document_of(app: FastAPI) -> dict[str, Any]:
    """Return the document of an application, made once, whoever asks at the same time."""
    with _MAKING:
        if not app.openapi_schema:
            app.openapi_schema = _complete(
                get_openapi(
                    title=app.title,
                    version=app.version,
                    description=app.description,
                    routes=app.routes,
                    tags=TAGS,
                    servers=[{"url": "/", "description": "The server that gave this document."}],
                )
            )
    return app.openapi_schema


def _complete(document: dict[str, Any]) -> dict[str, Any]:
    components = document["components"]
    components["securitySchemes"] = _SCHEMES
    for path, _, operation in operations(document):
        probe = not path.startswith("/api/")
        operation["security"] = [{}] if probe else [{"bearer": []}, {"basic": []}]
        for it in operation.get("parameters", ()):
            it.setdefault("description", _COMMON.get(it["name"], _words(it["name"])))
    schemas = components["schemas"]
    for name, schema in schemas.items():
        about = {found[1]: found[2] for found in _ABOUT.finditer(" ".join(schema.get("description", "").split()))}
        for field, it in schema.get("properties", {}).items():
            text = about.get(field) or _COMMON.get(field) or _words(field)
            it.setdefault("description", f"{text[:1].upper()}{text[1:].rstrip('.')}.")
        if "description" not in schema:
            schema["description"] = f"{_words(name)}."
    for schema in schemas.values():
        if schema.get("type") == "object" and not schema.get("examples"):
            schema["examples"] = [_example(schema, schemas)]
    return document


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every operation, with its path and its method."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _words(name: str) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ").lower()
    return words[:1].upper() + words[1:]


#: What stands for a value without an example of its own.
_EXAMPLES: Final[Mapping[str, Any]] = {
    "date-time": "2026-01-31T03:00:00Z",
    "uuid": "019c0000-0000-7000-8000-000000000001",
    "string": "billing",
    "integer": 1,
    "number": 1.5,
    "boolean": False,
}


def _example(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int = 0) -> Any:
    """An example of a schema, of the examples of its fields. What a caller may leave out is left out."""
    for key in ("examples", "enum", "anyOf", "$ref"):
        if it := schema.get(key):
            if key in ("examples", "enum"):
                return it[0]
            return _example(it[0] if key == "anyOf" else schemas[it.rpartition("/")[2]], schemas, depth)
    if schema.get("type") == "object":
        fields, needed = schema.get("properties", {}), schema.get("required", [])
        return {name: _example(it, schemas, depth + 1) for name, it in fields.items() if name in needed}
    if schema.get("type") == "array":
        return [_example(schema["items"], schemas, depth + 1)] if depth < _DEEP else []
    return _EXAMPLES.get(schema.get("format", ""), _EXAMPLES.get(schema.get("type", "")))
