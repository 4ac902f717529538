"""Killed, paused or cut off at any step of a batch: no row is lost, and none is in the archive twice."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from relay.adapters.coldstore import FolderStore
from relay.commands.coldrows import ColdRows
from relay.devstack import NatsServer
from relay.domain.archive import ArchiveKind, RowFilter
from relay.domain.errors import DatabaseUnreachable
from tests.integration.archive_crash import DELETING, KEEP, STEPS, Store, Tables
from tests.integration.archiving import AFTER, ANN, Archive, archived
from tests.integration.publishing import event, query

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
ALL = RowFilter()
#: The session that holds a batch.
CUT = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE state = 'idle in transaction' AND datname = current_database()
"""


@pytest.fixture
async def archive(database_url: str, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Archive]:
    async with archived(database_url, nats_server.url, tmp_path / "cold") as archive:
        yield archive


def unseen(_done: int, _of: int | None) -> None:
    """Nobody looks at the progress."""


def killed(archive: Archive, step: str) -> None:
    command = [sys.executable, "-m", "tests.integration.archive_crash", archive.url, archive.relay.nats_url]
    command += [str(archive.root), archive.relay.context, step]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def safe(archive: Archive, ids: list[UUID]) -> None:
    """Each row is in its table, or in a file that the database's record names; never in both, never in none."""
    recorded = query(archive.url, "SELECT number, sha256 FROM archive_batches WHERE kind = 'inbox'")
    folder = archive.root / archive.relay.context / "inbox"
    for batch in recorded:
        assert (folder / f"{batch['number']:08d}-{batch['sha256'][:16]}.jsonl.gz").is_file()
    rows = sum(row["rows"] for row in query(archive.url, "SELECT rows FROM archive_batches"))
    assert rows + len(archive.in_table("inbox")) == len(ids)
    assert not set(archive.in_table("inbox")) & set(archive.in_archive("inbox"))


async def finished(archive: Archive, ids: list[UUID]) -> None:
    await archive.command(rows=60).run(ANN)
    assert archive.in_table("inbox") == []
    assert archive.in_archive("inbox") == ids
    assert [found.error for found in await archive.verified() if found.error] == []


@pytest.mark.parametrize("step", STEPS)
async def test_killed_at_any_step(archive: Archive, step: str) -> None:
    ids = archive.messages(100)  # of which the first batch takes 60
    killed(archive, step)
    safe(archive, ids)
    done = STEPS.index(step) >= STEPS.index("committed")
    assert len(archive.in_table("inbox")) == (40 if done else 100)
    await finished(archive, ids)


@pytest.mark.timeout(600)  # ten processes, one after the other
async def test_killed_again_and_again_with_other_rows_each_time(archive: Archive) -> None:
    """What comes of age or is taken back in between makes the next batch another one."""
    ids = archive.messages(100)
    for step in STEPS:
        killed(archive, step)
        safe(archive, ids)
        if step == "stored":
            [back] = [id for id in archive.in_table("inbox") if id == ids[0]]
            query(archive.url, "UPDATE inbox_messages SET subject = 'changed' WHERE message_id = %s", back)
    await archive.command(rows=60).run(ANN)
    assert archive.in_table("inbox") == []
    assert sorted(archive.in_archive("inbox")) == sorted(ids)
    findings = await archive.verified()
    assert [found.error for found in findings if found.error] == []
    assert [found.file for found in findings if found.left_over] != []


@pytest.mark.parametrize("step", STEPS[: STEPS.index("committed")])
async def test_cut_off_at_any_step_before_the_commit(archive: Archive, step: str) -> None:
    ids = archive.messages(100)
    left = [step]

    def cut(passed: str) -> None:
        if passed in left:
            left.remove(passed)
            query(archive.url, CUT)

    tables = Tables(archive.relay.pool.connection, archive.relay.context, cut)
    with pytest.raises(DatabaseUnreachable):
        await archive.command(Store(archive.root, cut, step), tables, rows=60).run(ANN)
    assert len(archive.in_table("inbox")) == 100
    safe(archive, ids)
    await finished(archive, ids)


async def test_one_that_was_paused_and_overtaken_changes_nothing(archive: Archive) -> None:
    """Its transaction is gone; what it still writes belongs to no batch."""
    ids = archive.messages(100)
    paused, go_on = asyncio.Event(), asyncio.Event()

    class Pausing(Store):
        async def put(self, name: str, content: object) -> None:
            if not paused.is_set():
                paused.set()
                await go_on.wait()
            await super().put(name, content)

    store = Pausing(archive.root, lambda _step: None)
    slow = asyncio.create_task(archive.command(store, rows=60).run(ANN))
    await paused.wait()
    query(archive.url, CUT)  # as idle_in_transaction_session_timeout does
    query(archive.url, "DELETE FROM inbox_messages WHERE message_id = %s", ids.pop(0))
    await archive.command(rows=60).run(ANN)
    go_on.set()
    with pytest.raises(DatabaseUnreachable):
        await slow
    assert archive.in_table("inbox") == []
    assert archive.in_archive("inbox") == ids
    findings = await archive.verified()
    assert [found.error for found in findings if found.error] == []
    assert len([found for found in findings if found.left_over]) == 1


async def test_a_batch_that_is_paused_loses_its_rows_after_a_minute(archive: Archive) -> None:
    async with archive.tables.open(ArchiveKind.INBOX, [], AFTER, 1) as batch:
        assert batch is not None
        row = await (await batch._conn.execute("SHOW idle_in_transaction_session_timeout")).fetchone()
    assert row == ("1min",)


# --- deletion, restore and replay ---

#: The end of a transaction's connection after all its other statements.
CUT_AT_AUDIT = """
    CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;
    CREATE TRIGGER cut BEFORE INSERT ON audit_log EXECUTE FUNCTION cut();
"""


@pytest.mark.parametrize("step", DELETING)
async def test_a_deletion_that_was_killed_is_finished_by_the_next_run(archive: Archive, step: str) -> None:
    """Nothing reads the batch any more, its messages are forgotten, and what waits stays."""
    archive.messages(1)
    await archive.command().run(ANN)
    archive.relay.add(event("waits"))
    killed(archive, step)
    assert await archive.tables.batches() == []
    assert [it.number for it in (await archive.command(keep=KEEP).run(ANN)).deleted] == [1]
    assert [*(archive.root / archive.relay.context / "inbox").iterdir()] == []
    assert query(archive.url, "SELECT gone_at IS NOT NULL AS gone FROM archive_batches") == [{"gone": True}]
    assert query(archive.url, "SELECT message_id FROM archived_messages") == []
    assert [row["action"] for row in archive.audit()] == ["archive", "archive.delete"]
    assert len(archive.in_table()) == 1
    archive.messages(1)
    assert [it.number for it in (await archive.command().run(ANN)).batches] == [2]


@pytest.mark.parametrize("step", ["restored in part", "replayed in part"])
async def test_what_was_killed_between_two_batches_is_started_again_as_it_was(archive: Archive, step: str) -> None:
    ids = await archive.events(4)
    await archive.command(rows=2).run(ANN)
    killed(archive, step)
    assert len(archive.in_table()) == 2
    rows, replayed = ColdRows(archive.tables, FolderStore(archive.root), lambda _row: None), step[:3] == "rep"
    for left in (2, 0):
        again = rows.replay(ALL, ANN, unseen) if replayed else rows.restore(ArchiveKind.OUTBOX, ALL, ANN, unseen)
        assert await again == left
    assert archive.in_table() == sorted(ids)
    found = query(archive.url, "SELECT DISTINCT generation, published_at IS NULL AS waits FROM outbox_events")
    assert found == [{"generation": int(replayed), "waits": replayed}]


async def test_what_is_cut_off_in_a_transaction_has_done_nothing(archive: Archive) -> None:
    await archive.events(2)
    await archive.command().run(ANN)
    query(archive.url, CUT_AT_AUDIT)
    rows = ColdRows(archive.tables, FolderStore(archive.root), lambda _row: None)
    for act in (rows.replay(ALL, ANN, unseen), rows.restore(ArchiveKind.OUTBOX, ALL, ANN, unseen)):
        with pytest.raises(DatabaseUnreachable):
            await act
        assert archive.in_table() == []
    with pytest.raises(DatabaseUnreachable):
        await archive.command(keep=KEEP).run(ANN)
    assert [it.number for it in await archive.tables.batches()] == [1]
    assert len(archive.in_archive()) == 2
