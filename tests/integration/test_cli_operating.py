"""`relay dlq` and `relay outbox` as an operator types them."""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest

from relay.cli import main
from relay.devstack import NatsServer
from relay.domain.ordering import Shard
from tests.integration.consuming import SUBSCRIPTION, Handler
from tests.integration.incidents import Desk, at_the_desk
from tests.integration.publishing import Relay, event, query

pytestmark = pytest.mark.anyio

CONFIG = """\
[contexts.sea]
[contexts.sea.subscriptions.from_upstream]
stream = "UP"
filter_subject = "up.>"
handler = "http://127.0.0.1:9/handle"
[contexts.quiet]
"""

SEA = ("--context", "sea")


@pytest.fixture
async def desk(database_url: str, nats_server: NatsServer) -> AsyncIterator[Desk]:
    async with at_the_desk(database_url, nats_server.url) as desk:
        yield desk


class _Answer(io.StringIO):
    """What an operator types, after something else has happened."""

    def __init__(self, text: str, meanwhile: Callable[[], object] | None) -> None:
        super().__init__(text)
        self._meanwhile = meanwhile

    def readline(self, size: int | None = -1, /) -> str:
        if self._meanwhile:
            self._meanwhile()
        return super().readline(size)


class _Terminal(io.StringIO):
    """What a person sees."""

    def isatty(self) -> bool:
        return True


class Shell:
    """Runs ``relay`` on a database as the context sea; the context quiet has none that answers, if none is given.

    In this process, as a new one would spend most of its time on imports.
    """

    def __init__(self, directory: Path, url: str, quiet: str = "postgresql://127.0.0.1:1/quiet") -> None:
        (directory / "relay.toml").write_text(CONFIG)
        self._directory = directory
        self._environment = {
            "PATH": os.environ["PATH"],
            "RELAY_CONTEXTS__SEA__DATABASE_URL": url,
            "RELAY_CONTEXTS__QUIET__DATABASE_URL": quiet,
        }

    def __call__(
        self,
        *arguments: str,
        answer: str = "",
        status: int = 0,
        meanwhile: Callable[[], object] | None = None,
        width: int | None = None,
    ) -> str:
        """Returns standard output, then standard error. Fails when the status is another one.

        ``meanwhile`` is called while the command waits for its ``answer``. ``width``: that of the terminal, in
        characters; without one, the output goes to a file.
        """
        output, errors = _Terminal() if width else io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self._directory),
            patch.dict(os.environ, self._environment | {"COLUMNS": str(width), "NO_COLOR": "1"}, clear=True),
            patch.multiple(sys, argv=["relay", *arguments], stdin=_Answer(answer, meanwhile)),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
            ThreadPoolExecutor(1) as aside,  # where no event loop runs
        ):
            ended = aside.submit(_status_of, main).result(60)
        printed = output.getvalue() + errors.getvalue()
        assert ended == status, printed
        return printed

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Begin a process of its own, for what signals do."""
        relay = Path(sys.executable).with_name("relay")
        return subprocess.Popen(
            [relay, *arguments],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


def _status_of(command: Callable[[], None]) -> Any:
    try:
        command()
    except SystemExit as ended:
        return ended.code or 0
    return 0


@pytest.fixture
def shell(tmp_path: Path, database_url: str) -> Shell:
    return Shell(tmp_path, database_url)


async def test_list_and_show_hide_the_payload_until_it_is_asked_for(desk: Desk, shell: Shell) -> None:
    message_id, id = await desk.incident(payload={"iban": "DE02 [red]"})
    listed = shell("dlq", "list", "--context", "sea")
    assert "poison" in listed
    [found] = shell.json("dlq", "list", "--context", "sea")
    assert (found["id"], found["context"], found["message_id"]) == (id, "sea", str(message_id))
    shown = shell("dlq", "show", str(id))
    assert "why" in shown
    assert not [text for text in (listed, shown, json.dumps(found)) if "DE02" in text]
    assert "DE02 [red]" in shell("dlq", "show", str(id), "--payload")
    detail = shell.json("dlq", "show", str(id), "--payload")
    assert json.loads(detail["payload"])["payload"] == {"iban": "DE02 [red]"}
    assert "UNKNOWN_INCIDENT" in shell("dlq", "show", "999", status=1)


async def test_list_shows_open_ones_of_all_contexts_and_says_which_did_not_answer(
    desk: Desk, shell: Shell
) -> None:
    _, id = await desk.incident()
    assert "DATABASE_UNREACHABLE: context quiet" in shell("dlq", "list", status=1)
    shell("dlq", "resolve", str(id), "--note", "sent by hand")
    sea = ("--context", "sea")
    hidden = shell("dlq", "list", *sea).splitlines()[-1]
    assert ("1." in hidden, "--status" in hidden, "resolved" in hidden) == (True,) * 3
    [found] = shell.json("dlq", "list", "--all", *sea)
    assert (found["status"], found["note"], found["closed_by"]) == ("resolved", "sent by hand", getpass.getuser())
    assert shell.json("dlq", "list", "--status", "resolved", "--class", "poison", *sea) == [found]
    assert shell.json("dlq", "list", "--all", "--class", "deterministic", *sea) == []


async def test_the_audit_log_is_listed_as_the_other_rows_are(desk: Desk, shell: Shell) -> None:
    ids = [(await desk.incident())[1] for _ in range(5)]
    shell("dlq", "requeue", str(ids[0]), "--actor", "bob", "--note", "mended")
    shell("dlq", "discard", *map(str, ids[1:]), "--actor", "ann", "--note", "of a test", "--yes")
    newest, oldest = shell.json("audit", "list", *SEA)
    assert (newest["action"], newest["actor"], newest["count"], newest["note"]) == (
        "dlq.discard",
        "ann",
        4,
        "of a test",
    )
    assert sorted(newest["ids"]) == sorted(map(str, ids[1:]))
    for narrowed in (["--actor", "bob"], ["--action", "dlq.requeue"], ["--id", str(ids[0])]):
        assert shell.json("audit", "list", *narrowed, *SEA) == [oldest]
    assert shell.json("audit", "list", "--limit", "1", *SEA) == [newest]
    assert shell.json("audit", "list", "--since", "1h", *SEA) == [newest, oldest]
    assert shell.json("audit", "list", "--since", "2099-01-01", *SEA) == []
    assert "No entries" in shell("audit", "list", "--actor", "eve", *SEA)
    shown = shell("audit", "list", "--columns", "who,action,rows,which", *SEA)
    assert re.search(r"ann +dlq.discard +4 ", shown)
    assert "…" in shown
    assert "DATABASE_UNREACHABLE" in shell("audit", "list", "--json", "--context", "quiet", status=1)
    assert "dlq.discard" in shell("audit", status=1)  # for the context quiet does not answer


async def test_requeue_by_id_needs_no_confirmation_and_names_its_operator(desk: Desk, shell: Shell) -> None:
    message_id, id = await desk.incident()
    answer = shell.json("dlq", "requeue", str(id), "--actor", "bob", "--note", "handler mended")
    [deed] = await desk.sub.query("SELECT id FROM audit_log")
    assert answer == {
        "context": "sea",
        "action": "requeued",
        "done": [str(id)],
        "refused": [],
        "deed": deed["id"],
        "left": 0,
        "gone": 0,
    }
    assert (await desk.audit())[-1]["actor"] == "bob"
    assert list(await desk.sub.inbox.overdue(SUBSCRIPTION, 10)) == [message_id]
    again = shell("dlq", "requeue", str(id), status=1)
    assert f"error INCIDENT_CLOSED: {id}: " in again
    history = shell.json("dlq", "show", str(id))["history"]
    assert [(entry["actor"], entry["action"]) for entry in history] == [("bob", "dlq.requeue")]


async def test_many_are_asked_about_and_no_answer_means_no(desk: Desk, shell: Shell) -> None:
    await desk.incident()
    await desk.incident(503, max_attempts=1)
    assert "2 dead letters" in shell("dlq", "requeue", "--all", status=1)
    shell("dlq", "requeue", "--all", answer="n\n", status=1)
    assert {row["status"] for row in await desk.rows()} == {"open"}
    assert "TOO_MANY" in shell("dlq", "requeue", "--all", "--limit", "1", "--yes", status=1)
    assert shell("dlq", "requeue", "--class", "exhausted", "--since", "1h") == "sea: requeued 1\n"
    assert [row["status"] for row in await desk.rows()] == ["open", "requeued"]
    await desk.incident()
    assert "sea: requeued 2\n" in shell("dlq", "requeue", "--subscription", SUBSCRIPTION, answer="y\n")
    assert shell("dlq", "requeue", "--all", "--yes") == "sea: requeued 0\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("dlq", "requeue"),
        ("dlq", "requeue", "1", "--all"),
        ("dlq", "requeue", "1", "--reason", "x"),
        ("dlq", "discard", "1", "--note", " "),
        ("dlq", "requeue", "1", "--actor", ""),
        ("dlq", "requeue", "--since", "yesterday"),
        ("dlq", "requeue", "--message", "a\nb"),
        ("outbox", "retry", "x" * 201, "--context", "sea"),
        ("outbox", "show", "", "--context", "sea"),
        ("outbox", "replay", "--context", "sea"),
        ("outbox", "retry", "--context", "sea"),
        ("outbox", "retry", "--all"),
        ("outbox", "replay", "--error", "x", "--context", "sea"),
    ],
)
def test_incomplete_commands_do_nothing(shell: Shell, arguments: tuple[str, ...]) -> None:
    assert "error INVALID_REQUEST: " in shell(*arguments, status=1)


def test_discarding_without_a_note_is_no_command(shell: Shell) -> None:
    assert "--note" in shell("dlq", "discard", "1", status=2)
    assert "UNKNOWN_CONTEXT" in shell("dlq", "show", "1", "--context", "nowhere", status=1)


async def test_the_outbox_from_dead_to_published_and_once_more(
    database_url: str, nats_server: NatsServer, shell: Shell
) -> None:
    sea = ("--context", "sea")
    async with Relay(database_url, nats_server.url) as relay:
        await relay.create_stream()
        dead = relay.insert(topic="no spaces allowed", payload='{"iban": "DE02"}')
        await relay.command(max_attempts=1).drain(Shard(0, 1))
        [found] = shell.json("outbox", "list", *sea)
        assert (found["id"], found["status"], "iban" in found) == (str(dead), "dead", False)
        assert "unrecoverable" in shell("outbox", "list", *sea)
        assert "DE02" not in shell("outbox", "show", str(dead), *sea)
        assert f"{dead}" in shell("outbox", "show", str(dead)), "a UUID is looked for in all contexts"
        assert shell.json("outbox", "show", str(dead), "--payload", *sea)["payload"] == {"iban": "DE02"}
        assert shell("outbox", "retry", "--all", "--dry-run", *sea) == "sea: 1 events would be published\n"
        assert relay.row(dead)["dead_at"] is not None
        assert shell.json("outbox", "retry", "--error", "spaces", *sea)["done"] == [str(dead)]
        assert relay.row(dead)["dead_at"] is None
        others = relay.add(event("v1"), event("v2"))
        await relay.command(max_attempts=1).drain(Shard(0, 1))
        assert "NOT_REPLAYABLE" in shell("outbox", "replay", str(dead), str(uuid4()), "--yes", *sea, status=1)
        aggregate = ("outbox", "replay", "--aggregate", "vibe:v1", *sea)
        count = {"context": "sea", "action": "published once more", "dry_run": True, "count": 1}
        assert shell.json(*aggregate, "--dry-run") == count
        assert shell.json(*aggregate)["done"] == [str(others[0])]
        await relay.command(max_attempts=1).drain(Shard(0, 1))
        assert (await relay.ids())[-1] == f"{others[0]}.1"
        assert "TOO_MANY" in shell("outbox", "replay", "--since", "1h", "--limit", "1", "--yes", *sea, status=1)
        assert "2 events" in shell("outbox", "replay", "--since", "1h", *sea, status=1)


async def test_what_a_filter_chose_and_is_published_meanwhile_is_no_error(
    database_url: str, nats_server: NatsServer, shell: Shell
) -> None:
    sea = ("--context", "sea")
    async with Relay(database_url, nats_server.url) as relay:
        await relay.create_stream()
        first, second = (relay.insert(topic="no spaces allowed") for _ in range(2))
        await relay.command(max_attempts=1).drain(Shard(0, 1))

        def published(id: object) -> None:
            changed = "UPDATE outbox_events SET published_at = now(), dead_at = NULL WHERE id = %s RETURNING id"
            query(database_url, changed, id)

        answer = shell("outbox", "retry", "--all", *sea, answer="y\n", meanwhile=lambda: published(first))
        assert "sea: to be published 1\n" in answer
        assert "NOT_PUBLISHABLE" not in answer
        by_id = ("outbox", "retry", str(first), str(second), *sea)
        assert f"error NOT_PUBLISHABLE: {first}: is published" in shell(*by_id, "--yes", status=1)


async def test_an_event_is_called_by_the_text_of_its_id(
    database_url: str, nats_server: NatsServer, shell: Shell
) -> None:
    sea = ("--context", "sea")
    async with Relay(database_url, nats_server.url) as relay:
        await relay.create_stream()
        row = relay.insert(originals='{"id": "evt_1", "correlation_id": "req_1"}', topic="no spaces allowed")
        relay.add(event(id="evt_2", correlation_id="req_2", topic="no.stream"))
        await relay.command(max_attempts=1).drain(Shard(0, 1))
        assert [it["id"] for it in shell.json("outbox", "list", *sea)] == ["evt_2", "evt_1"]
        assert [it["id"] for it in shell.json("outbox", "list", "--correlation", "req_2", *sea)] == ["evt_2"]
        shown = shell.json("outbox", "show", "evt_1", *sea)
        assert (shown["id"], shown["correlation_id"], shown["row_id"]) == ("evt_1", "req_1", str(row))
        several = shell("outbox", "show", "evt_1", status=1)
        assert "error INVALID_REQUEST: " in several, "a text may be the id of several"
        assert re.search("error [A-Z_]+: .*evt_3", shell("outbox", "show", "evt_3", *sea, status=1))
        assert shell.json("outbox", "retry", "evt_1", *sea)["done"] == ["evt_1"]
        assert "error NOT_REPLAYABLE: evt_2: " in shell("outbox", "replay", "evt_2", *sea, status=1)
        [entry] = shell.json("outbox", "show", "evt_1", *sea)["history"]
        assert entry["action"] == "outbox.retry"


async def test_a_dead_letter_is_found_by_the_texts_of_its_message(desk: Desk, shell: Shell) -> None:
    body = {"event_type": "vibe_created", "event_version": 1, "correlation_id": "req_1", "payload": {}}
    await desk.sub.send(json.dumps(body).encode(), Nats_Msg_Id="evt_1")
    await desk.sub.pull().accept(await desk.sub.fetch())
    await desk.sub.process(Handler.answering(422)).process(desk.sub.enqueued[0])
    await desk.record().run()
    for option in (("--message", "evt_1"), ("--correlation", "req_1")):
        [found] = shell.json("dlq", "list", *option, "--context", "sea")
        assert (found["message_id"], found["correlation_id"]) == ("evt_1", "req_1")
    assert shell.json("dlq", "list", "--message", "evt_2", "--context", "sea") == []
    assert "evt_1" in shell("dlq", "show", str(found["id"]))
    assert shell("dlq", "requeue", "--message", "evt_1") == "sea: requeued 1\n"


def test_a_port_in_use_is_one_line_with_a_code(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = shell("ops", "--port", str(taken.getsockname()[1]), status=1)
    assert re.fullmatch(
        r"error INVALID_REQUEST: --port: cannot listen at .*: Address already in use \(.*\)\n", said
    )
