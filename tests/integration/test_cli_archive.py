"""`relay archive` as an operator types it, and the job that the scheduler sends and a worker runs."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.cli import main
from relay.devstack import NatsServer, ValkeyServer
from scheduler.ticks import ticks
from tests.integration.publishing import query
from tests.integration.test_cli_reconcile import publish, queued, with_application
from tests.integration.test_upkeep import run_actor
from tests.waiting import wait_for

Cli = Callable[..., tuple[int, str, str]]
#: Whether somebody waits for a lock that another session holds.
BLOCKED = "SELECT 1 FROM pg_locks WHERE relation = 'archive_batches'::regclass AND NOT granted"
OLD = "UPDATE outbox_events SET published_at = now() - interval '100 days'"


@pytest.fixture
def context(
    database_url: str,
    nats_server: NatsServer,
    valkey: ValkeyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A context with an archive in ./cold; another one, quiet, has neither an archive nor a database."""
    name = f"arc{database_url.rpartition('_')[2]}"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cold").mkdir()
    (tmp_path / "relay.toml").write_text(
        f"""\
nats_url = "{nats_server.url}"
redis_url = "{valkey.url}"
redis_namespace = "{name}"
[contexts.{name}]
database_url = "{database_url}"
stream.max_bytes = "10MB"
dlq.max_bytes = "10MB"
[contexts.{name}.archive]
after = "90d"
directory = "{tmp_path / "cold"}"
[contexts.quiet]
database_url = "postgresql://127.0.0.1:1/quiet"
"""
    )
    return name


@pytest.fixture
def cli(
    context: str, database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["relay", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, printed.out, printed.err

    assert run("streams", "ensure", "--context", context)[0] == 0
    with_application(context, lambda app: publish(app, context))
    query(database_url, OLD)
    return run


def test_a_dry_run_counts_and_changes_nothing(cli: Cli, context: str, database_url: str, tmp_path: Path) -> None:
    status, output, _ = cli("archive", "run", "--dry-run", "--json")
    [report] = json.loads(output)
    assert (status, report["context"], report["batches"]) == (0, context, [])
    assert [(found["kind"], found["rows"]) for found in report["waiting"]] == [
        ("outbox", 3),
        ("inbox", 0),
        ("tasks", 0),
    ]
    assert "outbox" in cli("archive", "run", "--dry-run")[1]
    assert [*(tmp_path / "cold").iterdir()] == []
    assert query(database_url, "SELECT count(*) AS n FROM outbox_events") == [{"n": 3}]


@pytest.mark.parametrize("command", ["run", "run --dry-run", "verify"])
def test_where_nothing_is_archived_that_is_said(cli: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "relay.toml").write_text('[contexts.shop]\ndatabase_url = "postgresql://127.0.0.1:1/shop"\n')
    status, output, errors = cli("archive", *command.split())
    said = "no context has an archive ([contexts.NAME.archive] after = …, directory = …)\n"
    assert (status, output, errors) == (0, "", said)


def test_archive_list_and_verify(cli: Cli, context: str, database_url: str, tmp_path: Path) -> None:
    assert cli("archive", "list", "--context", context) == (0, f"Nothing is archived in {context}.\n", "")
    status, output, _ = cli("archive", "run", "--actor", "ann", "--context", context)
    assert (status, f"{context}: 3 rows to {context}/outbox/00000001-" in output) == (0, True)
    assert query(database_url, "SELECT count(*) AS n FROM outbox_events") == [{"n": 0}]
    assert query(database_url, "SELECT actor FROM audit_log") == [{"actor": "ann"}]
    assert cli("archive")[1] == f"{context}: no row is old enough\n"
    status, output, _ = cli("archive", "list", "--json", "--context", context)
    [batch] = json.loads(output)
    assert (status, batch["kind"], batch["number"], batch["rows"]) == (0, "outbox", 1, 3)
    assert "00000001" in cli("archive", "list", "--context", context)[1]
    assert cli("archive", "verify") == (0, f"{context}: 1 of 1 files are sound\n", "")
    left = tmp_path / "cold" / context / "outbox" / "00000002-0.jsonl.gz"
    left.touch()
    status, output, _ = cli("archive", "verify")
    assert (status, "00000002-0.jsonl.gz: no batch names it" in output, "None" in output) == (0, True, False)
    left.unlink()
    (tmp_path / "cold" / batch["file"]).write_bytes(b"")
    status, output, _ = cli("archive", "verify")
    assert (status, "error ARCHIVE_DAMAGED" in output, "0 of 1" in output) == (1, True, True)
    status, output, _ = cli("archive", "verify", "--json")
    assert (status, "size 0" in json.loads(output)[0]["error"] or "read" in output) == (1, True)


def test_ctrl_c_ends_a_run_between_its_file_and_its_commit_and_the_next_one_completes_it(
    cli: Cli, context: str, database_url: str, tmp_path: Path
) -> None:
    ids = {str(row["id"]) for row in query(database_url, "SELECT id FROM outbox_events")}
    run = [sys.executable, "-c", "from relay.cli import main; main()", "archive", "run", "--context", context]
    written = tmp_path / "cold" / context / "outbox"
    with psycopg.connect(database_url) as holding:
        holding.execute("LOCK TABLE archive_batches IN SHARE MODE")  # the run may read it, and not record a batch
        with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                wait_for("it is blocked", lambda: query(database_url, BLOCKED))
                assert len([*written.glob("*.jsonl.gz")]) == 1
                process.send_signal(signal.SIGINT)
                said, _ = process.communicate(timeout=60)
            finally:
                process.kill()
        assert (process.returncode, said) == (130, "")
    assert {str(row["id"]) for row in query(database_url, "SELECT id FROM outbox_events")} == ids
    assert cli("archive", "run", "--context", context)[0] == 0
    assert query(database_url, "SELECT id FROM outbox_events") == []
    [manifest] = [json.loads(path.read_text()) for path in written.glob("*.json")]
    with gzip.open(written / manifest["file"], "rt") as file:
        assert sorted(json.loads(line)["id"] for line in file) == sorted(ids)
    status, output, _ = cli("archive", "verify")
    assert (status, "1 of 1" in output) == (0, True)


def test_restore_and_replay(cli: Cli, context: str, database_url: str) -> None:
    cli("archive")
    first = "SELECT id::text, partition_key AS key FROM outbox_events ORDER BY seq LIMIT 1"
    status, output, _ = cli("archive", "restore", "--all", "--dry-run", "--context", context)
    assert (status, output) == (0, f"{context}: 3 outbox rows would be restored\n")
    assert query(database_url, first) == []
    assert cli("archive", "restore", "--all", "--yes", "--limit", "2")[2].startswith("error TOO_MANY")
    status, output, _ = cli("archive", "restore", "--all", "--yes", "--json")
    assert (status, json.loads(output)["count"]) == (0, 3)
    [row] = query(database_url, first)
    status, output, _ = cli("archive", "replay", row["id"], "--actor", "ann", "--note", "a new reader", "--json")
    assert (status, json.loads(output)["count"]) == (0, 1)
    assert json.loads(cli("archive", "replay", row["id"], "--json")[1])["count"] == 0
    [done] = query(database_url, "SELECT ids, actor, note FROM audit_log WHERE action = 'outbox.replay'")
    assert done == {"ids": [row["id"]], "actor": "ann", "note": "a new reader"}
    generations = query(database_url, "SELECT generation FROM outbox_events ORDER BY seq")
    assert [row["generation"] for row in generations] == [1, 0, 0]


def test_a_replay_says_who_may_handle_it_again(cli: Cli, context: str, tmp_path: Path) -> None:
    cli("archive")
    reads = f'stream = "{context.upper()}_EVENTS"\nfilter_subject = "{context}.>"\nhandler = "http://h/"\n'
    archive = f'[contexts.quiet.archive]\nafter = "90d"\nkeep = "2y"\ndirectory = "{tmp_path}"\n'
    with (tmp_path / "relay.toml").open("a") as file:
        file.write(f"[contexts.quiet.subscriptions.all]\n{reads}{archive}")
    said = "warning: quiet deletes its archive after 2y, with the ids of what it has handled"
    arguments = ("--all", "--dry-run", "--context", context)
    assert said in cli("archive", "replay", *arguments)[2]
    assert said not in cli("archive", "restore", *arguments)[2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("replay",), "INVALID_REQUEST"),
        (("replay", "--all", "--key", "k"), "INVALID_REQUEST"),
        (("replay", "--subject", "a..b"), "subject"),
        (("restore", "--kind", "tasks", "--subject", "a.b"), "subject"),
        (("restore", "--kind", "inbox", "--since", "soon"), "'soon'"),
        (("replay", "--until", "2025"), "'2025'"),
        (("restore", "--all", "--context", "quiet"), "error ARCHIVE_OFF"),
    ],
)
def test_what_is_wanted_must_be_said(cli: Cli, arguments: tuple[str, ...], expected: str) -> None:
    status, _, error = cli("archive", *arguments)
    assert (status, expected in error) == (1, True), error


def test_reconciliation_after_an_archive_is_quiet(cli: Cli, context: str) -> None:
    assert cli("archive")[0] == 0
    with_application(context, lambda app: publish(app, context))
    assert cli("reconcile", "--context", context)[0] == 0


def test_what_is_held_back_is_said_and_status_one(cli: Cli, context: str) -> None:
    async def keep_for_ever(application: Any) -> None:
        js = (await application.nats.client()).jetstream()
        config = (await js.stream_info(f"{context.upper()}_EVENTS")).config
        config.max_age = 0
        await js.update_stream(config)

    with_application(context, keep_for_ever)
    status, _, error = cli("archive")
    assert status == 1
    assert error.startswith(f"held {context}: outbox of {context.upper()}_EVENTS: ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("archive", "run", "--context", "quiet"), "error ARCHIVE_OFF: context quiet: "),
        (("archive", "run", "--context", "nowhere"), "error UNKNOWN_CONTEXT"),
        (("archive", "list", "--context", "quiet"), "error DATABASE_UNREACHABLE: context quiet"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(cli: Cli, arguments: tuple[str, ...], expected: str) -> None:
    status, _, error = cli(*arguments)
    assert (status, error.count("\n"), expected in error) == (1, 1, True)


def test_a_place_that_is_away_is_said_in_one_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cold").rmdir()
    status, _, error = cli("archive")
    assert (status, "error STORE_UNREACHABLE" in error, "mount" in error) == (1, True, True)


def test_the_scheduler_sends_it_every_hour_where_it_is_on(cli: Cli, context: str, valkey: ValkeyServer) -> None:
    async def tick(application: Any) -> None:
        from relay.adapters.dramatiq.broker import create_broker

        broker = create_broker(valkey.url, namespace=context, middleware=[])
        [job] = [job for job in ticks(application, broker, context) if job.name == f"archive:{context}"]
        assert job.every == timedelta(hours=1)
        assert not [job for job in ticks(application, broker, "quiet") if job.name.startswith("archive")]
        for _ in range(2):
            await job.tick()

    with_application(context, tick)
    [(actor, arguments)] = queued(valkey, context, "relay-archive")
    assert (actor, arguments[0]) == ("archive", context)


def test_a_worker_archives(cli: Cli, context: str, database_url: str, tmp_path: Path) -> None:
    done = run_actor(tmp_path / "relay.toml", "relay.actors", "archive", context, "token")
    assert "RowsArchived" in done.stderr
    assert query(database_url, "SELECT count(*) AS n FROM outbox_events") == [{"n": 0}]
    assert query(database_url, "SELECT actor FROM audit_log") == [{"actor": "scheduler"}]
    run_actor(tmp_path / "relay.toml", "relay.actors", "archive", "quiet", "token")
