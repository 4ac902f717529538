"""What lists say at 3 a.m.: on terminals of any width, and when there is nothing, or nothing could be read."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import patch

import pytest

from relay.cli import main
from relay.devstack import NatsServer
from relay.domain.model import HandlerResult
from relay.domain.ordering import Shard
from relay.execution.calls import answer
from tests.integration.consuming import Handler
from tests.integration.incidents import Desk, at_the_desk
from tests.integration.publishing import Relay, event, query
from tests.integration.test_cli_operating import Shell
from tests.unit.test_reasons import EXAMPLES

pytestmark = pytest.mark.anyio
SEA = ("--context", "sea")
WIDTHS = (80, 120, 200)


@pytest.fixture
def shell(tmp_path: Path, database_url: str) -> Shell:
    return Shell(tmp_path, database_url)


@pytest.fixture
async def desk(database_url: str, nats_server: NatsServer) -> AsyncIterator[Desk]:
    async with at_the_desk(database_url, nats_server.url) as desk:
        yield desk


# --- what could not be read ---


@pytest.fixture
def down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three contexts, and PostgreSQL is down."""
    archive = f'after = "90d"\ndirectory = "{tmp_path}/cold"\n'
    (tmp_path / "relay.toml").write_text(f"[contexts.a]\n[contexts.b]\n[contexts.c.archive]\n{archive}")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        *("dlq list", "outbox list", "tasks list", "parked list", "schedule list", "backlog", "archive list"),
        *("dlq list --json", "outbox list --json", "tasks list --json", "parked list --json"),
        *("schedule list --json", "backlog --json", "archive list --json"),
    ],
)
@pytest.mark.usefixtures("down")
def test_what_could_not_be_read_is_not_called_empty(command: str) -> None:
    databases = {f"RELAY_CONTEXTS__{it}__DATABASE_URL": f"postgresql://127.0.0.1:1/{it}" for it in "ABC"}
    output, errors = io.StringIO(), io.StringIO()
    with (
        patch.dict(os.environ, {"PATH": os.environ["PATH"], **databases}, clear=True),
        patch.object(sys, "argv", ["relay", *command.split()]),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert ended.value.code == 1
    said = errors.getvalue().splitlines()
    assert [line.partition(": the ")[0] for line in said] == [
        f"error DATABASE_UNREACHABLE: context {name}" for name in "abc"
    ]
    if "--json" in command:
        found = json.loads(output.getvalue())
        assert [(it["context"], it["error"]["code"]) for it in found] == [
            (name, "DATABASE_UNREACHABLE") for name in "abc"
        ]
    else:
        assert output.getvalue().count("\n") == 1
        assert "3 of 3" in output.getvalue()


async def test_a_list_that_lacks_a_context_says_so(desk: Desk, shell: Shell) -> None:
    assert "No open dead letters in sea.\ncould not read 1 of 2 contexts\n" in shell("dlq", "list", status=1)
    await desk.incident()
    assert "1 of 2" in shell("dlq", "list", status=1)
    found, lacks = json.loads(shell("dlq", "list", "--json", status=1).partition("\nerror")[0])
    assert (found["context"], lacks["context"]) == ("sea", "quiet")
    assert lacks["error"]["hint"]


# --- what is not shown ---


async def test_an_empty_list_says_what_was_looked_for_and_what_is_hidden(
    database_url: str, nats_server: NatsServer, shell: Shell
) -> None:
    async with Relay(database_url, nats_server.url) as relay:
        await relay.create_stream()
        assert shell("outbox", "list", *SEA) == "No dead or failing events in sea.\n"
        relay.add(event("v1"), event("v2"))
        await relay.command().drain(Shard(0, 1))
        waits = relay.add(event("v3"))
        hidden = "In all states: 3. See --status waiting, delayed, published, discarded or expired.\n"
        assert shell("outbox", "list", *SEA).endswith(f"\n{hidden}")
        found = shell("outbox", "list", "--status", "waiting", "--aggregate", "vibe:v9", *SEA)
        assert found.startswith(
            "No waiting events with --aggregate vibe:v9 in sea.\nIn all states, without the filter: 3."
        )
        assert str(waits[0]) in shell("outbox", "list", "--status", "waiting", *SEA)


# --- terminals ---


@pytest.mark.parametrize("width", WIDTHS)
async def test_a_list_shows_id_status_and_reason_at_any_width(
    database_url: str, nats_server: NatsServer, shell: Shell, width: int
) -> None:
    async with Relay(database_url, nats_server.url) as relay:
        await relay.create_stream()
        dead = relay.insert(topic="no spaces allowed", payload='{"iban": "DE02"}')
        await relay.command(max_attempts=1).drain(Shard(0, 1))
        shown = shell("outbox", "list", *SEA, width=width)
    assert max(map(len, shown.splitlines())) <= width
    assert (str(dead) in shown, "dead" in shown, "sea" in shown, "unrecoverable" in shown) == (True,) * 4
    assert re.search(r" s ago|now", shown)


@pytest.mark.parametrize("width", WIDTHS)
async def test_dead_letters_show_id_status_and_reason_at_any_width(desk: Desk, shell: Shell, width: int) -> None:
    _, id = await desk.incident()
    shown = shell("dlq", "list", *SEA, width=width)
    assert max(map(len, shown.splitlines())) <= width
    assert (str(id) in shown, "open" in shown, "sea" in shown, "why" in shown) == (True,) * 4
    assert re.search(r" s ago|now", shown)


FORGED = (
    "INSERT INTO dead_letters (message_id, subscription, subject, class, reason)"
    " SELECT gen_random_uuid(), 'inward', 's', 'unconfirmed', 'unconfirmed: x' FROM generate_series(1, 5000)"
    " RETURNING id"
)
COUNTED = "and 5000 unconfirmed letters: --class unconfirmed"


async def test_forged_letters_are_counted_and_hide_no_real_one(
    desk: Desk, shell: Shell, database_url: str
) -> None:
    _, id = await desk.incident()
    forged = query(database_url, FORGED)[-1]["id"]
    lines = shell("dlq", "list", *SEA).splitlines()
    assert (len(lines), lines[-1]) == (3, COUNTED)
    assert [it["id"] for it in shell.json("dlq", "list", *SEA)] == [id]
    for asked in (["--class", "unconfirmed"], ["--reason", "unconfirmed"]):
        assert shell.json("dlq", "list", *asked, "--limit", "1", *SEA)[0]["id"] == forged
    query(database_url, "DELETE FROM dead_letters WHERE id = %s RETURNING id", id)
    assert shell("dlq", "list", *SEA).splitlines() == ["No open dead letters in sea.", COUNTED]
    found = shell("dlq", "discard", "--all", "--note", "x", "--dry-run", *SEA)
    assert found.startswith("sea: 0 dead letters")


async def test_columns_are_chosen_and_wide_shows_them_all_on_one_line(desk: Desk, shell: Shell) -> None:
    message_id, id = await desk.incident()
    chosen = shell("dlq", "list", "--columns", "id,message_id,reason", *SEA, width=80)
    assert chosen.splitlines() == [
        "id  message id                            reason",
        f"{id:<2}  {message_id}  HTTP 422: why",
    ]
    heading, line = shell("dlq", "list", "--wide", *SEA, width=80).splitlines()
    assert (heading.split()[0], heading.split()[-1], line.split()[0], line.split()[-1]) == (
        "context", "reason", "sea", "why",
    )  # fmt: skip
    refused = shell("dlq", "list", "--columns", "id,raeson", *SEA, status=1)
    assert re.search("error INVALID_REQUEST: --columns: .*'raeson'", refused)


# --- where a handler failed ---


def close_case(_request: object) -> HandlerResult:
    try:
        return HandlerResult.failed({"DE02": "x"}["DE89"])
    except KeyError as error:
        return answer(error)


async def test_a_dead_letter_shows_where_its_handler_failed(desk: Desk, shell: Shell) -> None:
    message_id = await desk.sub.send(b'{"event_type": "vibe_created", "event_version": 1, "payload": {}}')
    await desk.sub.pull().accept(await desk.sub.fetch())
    await desk.sub.process(Handler(close_case), max_attempts=1).process(message_id)
    await desk.record().run()
    [found] = shell.json("dlq", "list", "--reason", "raised_KeyError", *SEA)
    assert f": KeyError at {__name__}.close_case:" in found["reason"]
    assert len(found["stack"]) == 1
    shown = shell("dlq", "show", str(found["id"]))
    assert re.search(r"^stack +tests/integration/test_cli_lists.py:[0-9]+ in close_case$", shown, re.MULTILINE)
    assert "DE89" not in shown


# --- codes of reasons ---


async def test_dead_letters_are_found_by_the_code_of_their_reason(
    desk: Desk, shell: Shell, database_url: str
) -> None:
    def listed(reason: str) -> list[int]:
        return [row["id"] for row in shell.json("dlq", "list", "--reason", reason, *SEA)]

    reasons = dict(EXAMPLES)
    ids = {code: (await desk.incident())[1] for code in reasons}
    for code, id in ids.items():
        query(database_url, "UPDATE dead_letters SET reason = %s WHERE id = %s RETURNING id", reasons[code], id)
    assert {code: listed(code) for code in ids} == {code: [id] for code, id in ids.items()}
    assert {row["reason_code"] for row in shell.json("dlq", "list", *SEA)} == set(ids)
    assert listed("connection refused") == [ids["connection_refused"]]
    assert listed("BUSY") == [ids["status_503"]]
    assert shell.json("dlq", "list", "--reason", "status_504", *SEA) == []
    assert shell("dlq", "requeue", "--reason", "tls", *SEA) == "sea: requeued 1\n"


async def test_events_and_tasks_are_found_by_the_code_of_their_error(
    database_url: str, nats_server: NatsServer, shell: Shell
) -> None:
    async with Relay(database_url, nats_server.url) as relay:
        await relay.create_stream()
        dead = relay.insert(topic="no spaces allowed")
        await relay.command(max_attempts=1).drain(Shard(0, 1))
    [found] = shell.json("outbox", "list", "--error", "invalid_event", *SEA)
    assert (found["id"], found["error_code"]) == (str(dead), "invalid_event")
    assert shell.json("tasks", "list", "--error", "timeout", *SEA) == []
