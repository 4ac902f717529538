"""A client that is generated from the API's document has names and fields, and talks to `relay ops`."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest

from relay.devstack import NatsServer, ValkeyServer
from relay.ops.kinds import KINDS
from tests.integration.ops_rows import real_rows
from tests.integration.test_ops_bounds import running
from tests.unit.ops_support import TOKENS

pytestmark = pytest.mark.anyio


def generated(document: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The package that the generator makes of a document, imported."""
    (folder / "openapi.json").write_text(json.dumps(document))
    (folder / "config.yaml").write_text("post_hooks: []\n")
    name = f"client_{uuid4().hex}"
    command = [
        *(Path(sys.executable).with_name("openapi-python-client"), "generate", "--meta", "none"),
        *("--path", folder / "openapi.json", "--config", folder / "config.yaml", "--output-path", folder / name),
        "--fail-on-warning",
    ]
    made = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module(name)


async def test_a_generated_client_lists_shows_and_acts(
    database_url: str,
    nats_server: NatsServer,
    valkey: ValkeyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    namespace = f"test-{uuid4().hex}"
    async with (
        real_rows(database_url, nats_server.url, valkey.url, namespace, tmp_path) as rows,
        running(rows, tmp_path) as (http, _),
    ):
        document = (await http.get("/api/v1/openapi.json")).json()
        package = await asyncio.to_thread(generated, document, tmp_path, monkeypatch)
        client = package.AuthenticatedClient(base_url=str(http.base_url), token=TOKENS["operator"])

        async def call(name: str, *which: Any, **more: Any) -> Any:
            module = importlib.import_module(f"{package.__name__}.api.{name}")
            return await asyncio.to_thread(module.sync, *which, client=client, **more)

        models = importlib.import_module(f"{package.__name__}.models")
        letters = await call("dead_letters.list_dead_letters", rows.context, since="9999d")
        assert rows.letters[0] in [it.id for it in letters.items]
        assert all(
            isinstance(it, models.DeadLetter) and isinstance(it.recorded_at, datetime) for it in letters.items
        )
        details = await call("dead_letters.show_dead_letter", rows.context, rows.letters[0])
        assert (details.id, details.reason_code) == (rows.letters[0], letters.items[-1].reason_code)
        for name, list_ in (
            ("events.list_events", models.EventList),
            ("inbox.list_messages", models.MessageList),
            ("tasks.list_tasks", models.TaskList),
        ):
            page = await call(name, rows.context, limit=1)
            assert isinstance(page, list_)
            assert page.items[0].status.value
        chosen = models.DeadLettersSelection(ids=[rows.letters[1]], note="by a client")
        done = await call("dead_letters.discard_dead_letters", rows.context, body=chosen)
        assert (done.count, done.done) == (1, [str(rows.letters[1])])
        [entry, *_] = await call("contexts.read_audit", rows.context)
        assert (entry.action, entry.note, entry.ids) == ("dlq.discard", "by a client", [str(rows.letters[1])])
        refused = await call("dead_letters.show_dead_letter", "nowhere", 1)
        assert refused.error.code == "UNKNOWN_CONTEXT"
        assert (await call("system.list_backlogs"))[0].outbox.count >= 0


def test_each_column_of_a_kind_is_a_field_of_its_model() -> None:
    from relay.ops.api.rows_out import row_model

    for kind in KINDS.values():
        assert {it.name for it in kind.columns if it.in_lists} <= {*row_model(kind).model_fields}
