"""Commands that read, on a database that needs too long, or has too much."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from relay.cli import options
from relay.ops import queries
from relay.ops.requests import TYPED
from tests.integration.test_cli_operating import Shell

READING = (
    "outbox list",
    "outbox show 019c0000-0000-7000-8000-000000000000",
    "inbox list",
    "dlq list",
    "tasks list",
    "parked list",
    "schedule list",
    "archive list",
    "backlog",
    "explain 019c0000-0000-7000-8000-000000000000",
)
TABLES = "outbox_events, inbox_messages, dead_letters, task_outbox, parked_keys, scheduled_jobs, archive_batches"
PARKED = """INSERT INTO parked_keys (subscription, order_key, message_id, reason)
    SELECT 'from_upstream', 'key' || i, gen_random_uuid(), 'x' FROM generate_series(1, %s) AS i"""


def test_a_command_that_reads_does_not_wait_for_ever(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that waits for a lock is as slow as one that has too much to read."""
    shell = Shell(tmp_path, database_url)
    for module in (options, queries):
        monkeypatch.setattr(module, "ASKED_S", 0.2)
    with psycopg.connect(database_url) as connection:
        connection.execute(f"LOCK {TABLES}")
        for command in READING:
            words = command.split()
            where = () if words[0] == "explain" else ("--context", "sea")
            told = shell(*words, *where, status=1)
            assert "TOO_SLOW" in told, (command, told)
            assert "narrow" in told


def test_a_list_that_is_no_page_says_that_it_ends(tmp_path: Path, database_url: str) -> None:
    shell = Shell(tmp_path, database_url)
    with psycopg.connect(database_url) as connection:
        connection.execute(PARKED, [TYPED + 5])
    told = shell("parked", "list", "--context", "sea")
    assert f"sea has more than {TYPED} of these" in told
    assert told.count("from_upstream") == TYPED
