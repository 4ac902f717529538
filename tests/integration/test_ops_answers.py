"""What each route of the HTTP API answers about real rows is what its document declares."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from relay.devstack import NatsServer, ValkeyServer
from relay.ops.kinds import ARCHIVED, DEAD_JOBS, JOBS, KINDS, PARKED
from tests.integration.ops_api import Api, misfit, serving
from tests.integration.ops_rows import real_rows
from tests.unit.ops_support import TOKENS

#: The kinds with pages of their own, by the end of the path of their list.
SPECIAL = {"parked": PARKED, "schedule": JOBS, "archive": ARCHIVED, "jobs": DEAD_JOBS}
pytestmark = pytest.mark.anyio


async def document_of(api: Api) -> dict[str, Any]:
    answer = await api.client.get("/api/v1/openapi.json", headers=_TOKEN)
    document: dict[str, Any] = copy.deepcopy(answer.json())
    for schema in document["components"]["schemas"].values():
        # Those that may have more say so.
        schema.setdefault("additionalProperties", False)
    return document


def about_nothing(body: Any) -> bool:
    """Whether an answer is about no row."""
    if not isinstance(body, dict):
        return not body
    rows = [
        body[it]
        for it in ("items", "jobs", "streams", "servers", "count", "sound", "rows", "alarms", "series")
        if it in body
    ]
    return not (rows or [body])[0]


_TOKEN = {"Authorization": f"Bearer {TOKENS['operator']}"}


async def test_each_answer_about_real_rows_is_what_its_route_declares(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer, tmp_path: Path
) -> None:
    namespace = f"test-{uuid4().hex}"
    async with (
        real_rows(database_url, nats_server.url, valkey.url, namespace, tmp_path) as rows,
        serving(rows.settings) as api,
    ):
        document = await document_of(api)
        declared = {(m.upper(), path) for path, found in document["paths"].items() for m in found}
        requests = rows.requests()
        assert {*requests} == declared, "each route needs a request here that finds rows"
        wrong, empty = {}, []
        for (method, path), asked in requests.items():
            for it in asked:
                how = {"params": it} if method == "GET" else {"json": it}
                url = path.format(**rows.names(path))
                answer = await api.client.request(method, url, headers=_TOKEN, **how)
                if path.endswith("/payload"):
                    assert answer.headers["Content-Type"] == "application/octet-stream"
                    assert answer.content
                    continue
                body = answer.json()
                if why := misfit(document, method, path, answer.status_code, body):
                    wrong[method, path] = why
                if answer.status_code >= 300 or about_nothing(body):
                    empty.append((method, path, it, body))
            if kind := KINDS.get(path.rpartition("/")[2]):
                # The columns of the statement are those of the description, from which each face is made.
                described = {it.name for it in kind.columns if it.in_lists}
                assert {*body["items"][0]} - {"stack", "row_id", "cursor", "context"} == described, path
            if special := SPECIAL.get(path.rpartition("/")[2]):
                listed = body if isinstance(body, list) else body.get("items") or body["jobs"]
                # Arguments of jobs are only there if they are asked for.
                assert {it.name for it in special.columns} - {"args"} <= {*listed[0]}, path
    assert wrong == {}
    assert empty == []
