"""The HTTP API as HTTP: HEAD, ETag, methods that no route has, ages, unreadable JSON, lines of JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from relay.devstack import NatsServer, ValkeyServer
from relay.ops.api.document import operations
from tests.integration.ops_api import Api, serving
from tests.integration.ops_rows import Rows, real_rows
from tests.unit.ops_support import TOKENS

pytestmark = pytest.mark.anyio
TOKEN = {"Authorization": f"Bearer {TOKENS['operator']}"}
LINES = {**TOKEN, "Accept": "application/x-ndjson"}


@pytest.fixture
async def real(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer, tmp_path: Path
) -> AsyncIterator[tuple[Rows, Api]]:
    namespace = f"test-{uuid4().hex}"
    async with (
        real_rows(database_url, nats_server.url, valkey.url, namespace, tmp_path) as rows,
        serving(rows.settings) as api,
    ):
        yield rows, api


def rows_in(body: Any) -> list[Any]:
    found: list[Any] = body if isinstance(body, list) else body.get("items") or body["jobs"]
    return found


async def test_each_question_has_a_head_and_each_list_has_lines(real: tuple[Rows, Api]) -> None:
    rows, api = real
    document = (await api.client.get("/api/v1/openapi.json", headers=TOKEN)).json()
    lined = 0
    for path, method, operation in operations(document):
        if method != "get" or path.endswith("/stream"):
            continue
        asked = rows.requests()["GET", path][0]
        url = path.format(**rows.names(path))
        got = await api.client.get(url, headers=TOKEN, params=asked)
        head = await api.client.head(url, headers=TOKEN, params=asked)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        assert head.headers["content-type"] == got.headers["content-type"], path
        if "application/x-ndjson" not in operation["responses"]["200"]["content"]:
            continue
        lined += 1
        about = {name: it for name, it in asked.items() if name == "subject"}
        whole = rows_in((await api.client.get(url, headers=TOKEN, params={**about, "limit": 500})).json())
        answer = await api.client.get(url, headers=LINES, params=about)
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        assert [json.loads(it) for it in answer.text.splitlines()] == whole, path
        assert (await api.client.head(url, headers=LINES, params=about)).content == b""
        one = await api.client.get(url, headers=LINES, params={**about, "limit": 1})
        assert [json.loads(it) for it in one.text.splitlines()] == whole[:1], path
    assert lined >= 9
    assert not api.ops.downloads.locked()


async def test_who_has_an_answer_gets_it_once(real: tuple[Rows, Api]) -> None:
    rows, api = real
    url = f"/api/v1/contexts/{rows.context}/dead-letters"
    first = await api.client.get(url, headers=TOKEN)
    tag = first.headers["ETag"]
    for known in (tag, f'"other", W/{tag}', "*"):
        again = await api.client.get(url, headers={**TOKEN, "If-None-Match": known})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
    other = await api.client.get(url, headers={**TOKEN, "If-None-Match": '"other"'})
    assert (other.status_code, other.content) == (200, first.content)
    discard = {"ids": [rows.letters[1]], "note": "a test"}
    assert (await api.client.post(f"{url}/discard", headers=TOKEN, json=discard)).status_code == 200
    changed = await api.client.get(url, headers={**TOKEN, "If-None-Match": tag})
    assert (changed.status_code, changed.headers["ETag"] != tag) == (200, True)


async def test_lines_end_where_the_last_page_does(real: tuple[Rows, Api], monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of more rows than are read at once; and one whose server goes away between two pages."""
    rows, api = real
    url = f"/api/v1/contexts/{rows.context}/events"
    whole = rows_in((await api.client.get(url, headers=TOKEN, params={"limit": 500})).json())
    monkeypatch.setattr("relay.ops.api.common.READ", 2)
    answer = await api.client.get(url, headers=LINES)
    assert [json.loads(it) for it in answer.text.splitlines()] == whole
    assert (answer.headers["Relay-Total"], answer.headers["Relay-Exact"]) == (str(len(whole)), "true")
    assert len(whole) > 2


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH"])
async def test_a_method_that_no_route_has_is_405(real: tuple[Rows, Api], method: str) -> None:
    rows, api = real
    answer = await api.client.request(method, f"/api/v1/contexts/{rows.context}/events", headers=TOKEN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert "GET" in answer.headers["Allow"]


async def test_what_is_not_valid_is_told_with_what_is(real: tuple[Rows, Api]) -> None:
    rows, api = real
    base = f"/api/v1/contexts/{rows.context}"

    async def error(answer: httpx2.Response) -> tuple[int, Any, str]:
        body = answer.json()["error"]
        return answer.status_code, body["field"], body["hint"] or ""

    misspelt = await api.client.get(f"{base}/dead-letters", headers=TOKEN, params={"reson": "timeout"})
    status, field, hint = await error(misspelt)
    assert (status, field) == (422, "reson")
    assert {"reason", "since", "status"} <= {*hint.removeprefix("permitted: ").split(", ")}
    inner = {"filter": {"reson": "timeout"}}
    status, field, hint = await error(
        await api.client.post(f"{base}/dead-letters/requeue", headers=TOKEN, json=inner)
    )
    assert (status, field) == (422, "filter.reson")
    assert "reason" in hint
    assert "ids" not in hint
    status, field, hint = await error(
        await api.client.post(f"{base}/dead-letters/requeue", headers=TOKEN, json={"idz": [1]})
    )
    assert (status, field, "ids" in hint) == (422, "idz", True)
    broken = await api.client.post(
        f"{base}/dead-letters/requeue", headers={**TOKEN, "Content-Type": "application/json"}, content=b"{"
    )
    assert broken.status_code == 400


async def test_times_may_be_ages(real: tuple[Rows, Api]) -> None:
    rows, api = real
    base = f"/api/v1/contexts/{rows.context}"
    for path in ("dead-letters", "events", "inbox", "tasks", "audit"):
        for age in ("6h", "9999d", "90m", "30s", "2026-01-31", "2026-01-31T03:00:00Z"):
            answer = await api.client.get(f"{base}/{path}", headers=TOKEN, params={"since": age})
            assert answer.status_code == 200, (path, age, answer.text)
        answer = await api.client.get(f"{base}/{path}", headers=TOKEN, params={"since": "soon"})
        assert (answer.status_code, answer.json()["error"]["field"]) == (422, "since")
    dry = {"filter": {"since": "9999d"}, "dry_run": True}
    answer = await api.client.post(f"{base}/dead-letters/requeue", headers=TOKEN, json=dry)
    assert answer.json()["count"] > 0


async def test_the_document_says_all_that_a_generator_needs(real: tuple[Rows, Api]) -> None:
    _, api = real
    document = (await api.client.get("/api/v1/openapi.json", headers=TOKEN)).json()
    found = list(operations(document))
    names = [it["operationId"] for _, _, it in found]
    assert len({*names}) == len(names)
    assert all(len(it) < 40 and it.isidentifier() for it in names)
    tags = {it["name"] for it in document["tags"]}
    for path, _, operation in found:
        assert {*operation["tags"]} <= tags
        assert operation["security"], path
        assert all(it["description"] for it in operation.get("parameters", ())), path
    for name, schema in document["components"]["schemas"].items():
        assert len(name) < 30
        assert schema["description"], name
        lacking = [it for it, field in schema.get("properties", {}).items() if not field["description"]]
        assert not lacking, name
        if schema.get("type") == "object":
            # No object without fields: a client would have a class without any.
            assert schema.get("properties"), name
            assert schema["examples"], name
    assert document["servers"]
    assert {*document["components"]["securitySchemes"]} == {"bearer", "basic"}
