"""Archived rows that are wanted again, messages that come again, and batches that were kept long enough."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pytest

from relay.adapters.coldstore import FolderStore
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.ledger import PostgresLedger
from relay.adapters.postgres.ordered_inbox import OrderedInboxAdapter
from relay.commands.coldrows import ColdRows
from relay.devstack import NatsServer
from relay.domain.archive import ArchiveDamaged, ArchiveKind, RowFilter
from relay.domain.errors import Stale
from relay.domain.facts import BatchDeleted
from relay.ports import InboxRow
from tests.integration.archive_crash import KEEP
from tests.integration.archiving import ANN, TABLES, Archive, archived
from tests.integration.publishing import event, query
from tests.pages import code

pytestmark = pytest.mark.anyio
ALL = RowFilter()
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tables.md"
TABLE = {
    ArchiveKind.OUTBOX: "outbox_events",
    ArchiveKind.INBOX: "inbox_messages",
    ArchiveKind.TASKS: "task_outbox",
}


@pytest.fixture
async def archive(database_url: str, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Archive]:
    async with archived(database_url, nats_server.url, tmp_path / "cold") as archive:
        yield archive


def cold(archive: Archive, store: Any = None) -> ColdRows:
    subject = {"v0": "sea.event.a.v1"}
    return ColdRows(
        archive.tables, store or FolderStore(archive.root), lambda row: subject.get(str(row.get("aggregate_id")))
    )


def unseen(_done: int, _total: int | None) -> None:
    """Nobody looks at the progress."""


# --- other tools ---


@pytest.mark.parametrize("kind", ArchiveKind)
async def test_a_line_has_the_columns_on_the_page_in_their_order(archive: Archive, kind: ArchiveKind) -> None:
    await archive.events(1)
    archive.messages(1)
    archive.tasks(1)
    await archive.command().run(ANN)
    [line] = archive.lines(kind)
    section = PAGE.read_text().partition(f"\n## {TABLE[kind]}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [*json.loads(line)]


async def test_duckdb_reads_what_manifests_name_as_the_page_says(archive: Archive) -> None:
    await archive.events(3)
    payload = json.dumps({"vibe_id": "é"})
    query(archive.url, "UPDATE outbox_events SET aggregate_id = '42', payload = %s WHERE seq > 1", payload)
    [first, *_] = query(archive.url, "SELECT published_at AS at, event_type FROM outbox_events WHERE seq = 2")
    await archive.command(rows=2).run(ANN)
    folder = archive.root / archive.relay.context
    (folder / "outbox" / "00000003-left-over.jsonl.gz").write_bytes(b"no part of the archive")
    text = code("docs/how-to/archive.md", "sql", 1)
    with duckdb.connect() as session:
        session.execute("SET timezone = 'UTC'")
        found = session.execute(text.replace("sea/", f"{folder}/")).fetchall()
    assert found == [(first["event_type"], 2, first["at"].date(), "é")]


# --- messages that come again ---


@pytest.mark.parametrize("adapter", [PostgresInboxAdapter, OrderedInboxAdapter])
async def test_a_message_whose_row_was_archived_is_still_known(
    archive: Archive, adapter: type[PostgresInboxAdapter]
) -> None:
    """A replayed event, for one. Whatever is new in the same batch is taken."""
    [old] = archive.messages(1)
    await archive.command().run(ANN)
    assert archive.in_table("inbox") == []
    new = uuid4()
    rows = [InboxRow(id, "s", "from_up", "UP", place, "reply", b"{}", {}) for place, id in enumerate((old, new))]
    inserted = {it.message_id: (it.new, it.done) for it in await adapter(archive.relay.pool).insert(rows)}
    assert inserted == {old: (False, True), new: (True, False)}
    assert archive.in_table("inbox") == [new]
    assert await PostgresLedger(archive.relay.pool).known([old, new, uuid4()]) == {old, new}


# --- restore ---


@pytest.mark.parametrize("kind", ArchiveKind)
async def test_rows_come_back_as_they_were_and_may_come_back_twice(archive: Archive, kind: ArchiveKind) -> None:
    await archive.events(3)
    archive.messages(3)
    archive.tasks(3)
    table, key = TABLES[kind]
    odd = {"outbox": "payload", "inbox": "headers", "tasks": "metadata"}[kind]
    value = json.dumps({"big": 12345678901234567890, "ten": 1.10, "text": 'é"\\\n\u2028', "none": None})
    query(archive.url, f"UPDATE {table} SET {odd} = %s::jsonb", value)
    before = query(archive.url, f"SELECT * FROM {table} ORDER BY {key}")
    await archive.command(rows=2).run(ANN)
    assert await cold(archive).count(kind, ALL, unseen) == 3
    assert await cold(archive).restore(kind, ALL, ANN, unseen) == 3
    assert query(archive.url, f"SELECT * FROM {table} ORDER BY {key}") == before
    assert await cold(archive).restore(kind, ALL, ANN, unseen) == 0
    actions = [row["ids"] for row in archive.audit() if row["action"] == "archive.restore"]
    assert [[Path(file).name[:8] for file in files] for files in actions] == [["00000002"], ["00000001"]] * 2


async def test_what_is_wanted_is_selected(archive: Archive) -> None:
    ids = await archive.events(3)
    correlation = uuid4()
    query(archive.url, "UPDATE outbox_events SET correlation_id = %s WHERE id = %s", correlation, ids[1])
    rows = query(archive.url, "SELECT published_at, partition_key, event_type FROM outbox_events ORDER BY seq")
    await archive.command(rows=2).run(ANN)
    times = [row["published_at"] for row in rows]
    expected = {
        RowFilter(ids=frozenset({ids[2]})): [ids[2]],
        RowFilter(correlation=correlation): [ids[1]],
        RowFilter(key=rows[0]["partition_key"]): [ids[0]],
        RowFilter(type=rows[0]["event_type"]): ids,
        RowFilter(type="other"): [],
        RowFilter(subject="sea.event.*.v1"): [ids[0]],
        RowFilter(subject="sky.>"): [],
        RowFilter(since=times[1]): ids[1:],
        RowFilter(until=times[1]): ids[:1],
        RowFilter(since=times[1], until=times[2]): [ids[1]],
        RowFilter(since=datetime.now(UTC)): [],
    }
    for wanted, found in expected.items():
        assert await cold(archive).count(ArchiveKind.OUTBOX, wanted, unseen) == len(found), wanted
    await cold(archive).restore(ArchiveKind.OUTBOX, RowFilter(since=times[1]), ANN, unseen)
    assert archive.in_table() == sorted(ids[1:])


@pytest.mark.parametrize("kind", ArchiveKind)
async def test_rows_of_an_older_release_come_back(archive: Archive, kind: ArchiveKind) -> None:
    """Without the columns that came later, and with one that is gone."""
    await archive.events(1)
    archive.messages(1)
    archive.tasks(1)
    before = query(archive.url, f"SELECT * FROM {TABLES[kind][0]}")
    await archive.command().run(ANN)
    row = json.loads(archive.lines(kind)[0])
    for later in {"originals", "stream"} & row.keys() if kind is ArchiveKind.OUTBOX else {"originals"}:
        del row[later]
    assert await archive.tables.restore(kind, [json.dumps(row | {"old": 1})], "file", ANN) == 1
    assert query(archive.url, f"SELECT * FROM {TABLES[kind][0]}") == before


async def test_an_event_stays_away_whose_text_is_the_id_of_another_by_now(archive: Archive) -> None:
    """SQL gives an event any UUID. So only the text tells that it is there."""
    ids = await archive.events(2)
    named = "UPDATE outbox_events SET originals = jsonb_build_object('id', 'evt_1') WHERE id = %s"
    query(archive.url, named, ids[0])
    await archive.command().run(ANN)
    new = archive.relay.add(event("new"))[0]
    query(archive.url, named, new)
    assert await cold(archive).restore(ArchiveKind.OUTBOX, ALL, ANN, unseen) == 1
    assert archive.in_table() == sorted([ids[1], new])
    assert await cold(archive).replay(ALL, ANN, unseen) == 1
    assert await generations(archive) == [(1, True), (0, True)]


async def test_nothing_comes_back_from_a_damaged_file(archive: Archive) -> None:
    await archive.events(1)
    await archive.command().run(ANN)
    [file] = (archive.root / archive.relay.context / "outbox").glob("*.gz")
    content = bytearray(file.read_bytes())
    content[20] ^= 1
    file.write_bytes(content)
    with pytest.raises(ArchiveDamaged, match="not what its manifest says"):
        await cold(archive).restore(ArchiveKind.OUTBOX, ALL, ANN, unseen)
    file.unlink()
    with pytest.raises(ArchiveDamaged, match="is missing"):
        await cold(archive).restore(ArchiveKind.OUTBOX, ALL, ANN, unseen)
    assert archive.in_table() == []


# --- replay ---


async def generations(archive: Archive) -> list[tuple[int, bool]]:
    rows = query(archive.url, "SELECT generation, published_at IS NULL AS waits FROM outbox_events ORDER BY seq")
    return [(row["generation"], row["waits"]) for row in rows]


async def test_archived_events_are_published_once_more_and_the_stream_has_them_again(archive: Archive) -> None:
    ids = await archive.events(3)
    await archive.command(rows=2).run(ANN)
    assert await cold(archive).replay(ALL, ANN, unseen) == 3
    assert await generations(archive) == [(1, True)] * 3
    assert await cold(archive).replay(ALL, ANN, unseen) == 0  # they wait already
    await archive.relay.drained()
    assert await generations(archive) == [(1, False)] * 3
    assert await cold(archive).replay(ALL, ANN, unseen) == 0  # and were replayed since they were archived
    assert archive.in_table() == sorted(ids)
    rows = [row for row in archive.audit() if row["action"] == "outbox.replay"]
    assert sorted(id for row in rows for id in row["ids"]) == sorted(map(str, ids))


async def test_a_restored_event_is_replayed_too_and_one_that_waits_is_left_alone(archive: Archive) -> None:
    ids = await archive.events(2)
    await archive.command().run(ANN)
    await cold(archive).restore(ArchiveKind.OUTBOX, ALL, ANN, unseen)
    query(archive.url, "UPDATE outbox_events SET published_at = NULL, dead_at = now() WHERE id = %s", ids[0])
    assert await cold(archive).replay(ALL, ANN, unseen) == 1
    assert await generations(archive) == [(0, True), (1, True)]


async def test_an_archived_event_whose_time_is_over_is_replayed_only_with_a_new_time(archive: Archive) -> None:
    stale, fresh, other = await archive.events(3)
    query(archive.url, "UPDATE outbox_events SET expires_at = now() - interval '1 s' WHERE id = %s", stale)
    query(archive.url, "UPDATE outbox_events SET expires_at = 'infinity' WHERE id = %s", fresh)
    await archive.command().run(ANN)
    assert await cold(archive).replay(ALL, ANN, unseen) == 2
    assert archive.in_table() == sorted([fresh, other])
    chosen = RowFilter(ids=frozenset([stale]))
    with pytest.raises(Stale, match="1") as refused:
        await cold(archive).replay(chosen, ANN, unseen)
    assert "--expires-in" in str(refused.value.hint)
    assert archive.in_table() == sorted([fresh, other])
    assert await cold(archive).replay(chosen, ANN, unseen, timedelta(hours=1)) == 1
    await archive.relay.drained()
    assert len(await archive.relay.messages()) == 6
    assert [it["about"] for it in query(archive.url, "SELECT about FROM audit_log ORDER BY id DESC LIMIT 1")] == [
        {"expires_in": "60 min"}
    ]


# --- deletion ---


async def test_without_a_time_to_keep_nothing_is_deleted(archive: Archive) -> None:
    await archive.events(1, days=4000)
    assert (await archive.command().run(ANN)).deleted == []
    assert len(archive.in_archive()) == 1


async def test_batches_that_were_kept_long_enough_are_deleted_and_nothing_else(archive: Archive) -> None:
    """Whatever still waits, is dead or is younger stays where it is."""
    await archive.events(2)
    await archive.command().run(ANN)
    await archive.events(1, days=95)
    archive.relay.add(event("waits"))
    dead = archive.relay.add(event("dead"))[0]
    query(archive.url, "UPDATE outbox_events SET dead_at = now() - interval '4000 days' WHERE id = %s", dead)
    assert [it.number for it in (await archive.command(keep=KEEP).look()).deleted] == [1]
    report = await archive.command(keep=KEEP).run(ANN)
    assert [(it.number, it.rows) for it in report.deleted] == [(1, 2)]
    assert [manifest["number"] for manifest in archive.manifests()] == [2]
    assert len(archive.in_table()) == 2
    assert [found.left_over for found in await archive.verified()] == [False]
    assert [it.number for it in await archive.tables.batches()] == [2]
    assert [it.file for it in archive.facts if isinstance(it, BatchDeleted)] == [report.deleted[0].file]
    assert [row["ids"] for row in archive.audit() if row["action"] == "archive.delete"] == [
        [report.deleted[0].file]
    ]
    assert (await archive.command(keep=KEEP).run(ANN)).deleted == []


async def test_a_batch_that_is_deleted_while_others_read_is_not_taken_for_missing(archive: Archive) -> None:
    await archive.events(2)
    await archive.command(rows=1).run(ANN)
    looking = archive.command().verify()
    found = [await anext(looking)]
    counting = cold(archive).count(
        ArchiveKind.OUTBOX, ALL, lambda done, _: _deleted(archive) if done == 1 else None
    )
    assert await counting == 1
    found += [it async for it in looking]
    assert [(it.file.rpartition("/")[2][:8], it.error) for it in found] == [("00000001", None)]


def _deleted(archive: Archive) -> None:
    query(archive.url, "UPDATE archive_batches SET deleted_at = now() WHERE number = 2")
    for path in (archive.root / archive.relay.context / "outbox").glob("00000002*"):
        path.unlink()


async def test_a_deleted_batch_is_forgotten_and_one_that_is_damaged_is_not(archive: Archive) -> None:
    """An id that is forgotten too early would have its message handled twice."""
    ids = archive.messages(2)
    await archive.command(rows=1).run(ANN)
    [first, _] = sorted((archive.root / archive.relay.context / "inbox").glob("*.gz"))
    first.write_bytes(b"")
    await archive.command(keep=KEEP).run(ANN)
    assert [row["message_id"] for row in query(archive.url, "SELECT message_id FROM archived_messages")] == ids[:1]


async def test_a_message_that_is_in_a_later_batch_too_is_not_forgotten_with_the_first(archive: Archive) -> None:
    [id] = archive.messages(1)
    await archive.command().run(ANN)
    await cold(archive).restore(ArchiveKind.INBOX, ALL, ANN, unseen)
    query(archive.url, "UPDATE inbox_messages SET processed_at = now() - interval '95 days', attempts = 7")
    await archive.command().run(ANN)
    await cold(archive).restore(ArchiveKind.INBOX, ALL, ANN, unseen)
    assert query(archive.url, "SELECT attempts FROM inbox_messages") == [{"attempts": 7}]  # as it was at last
    assert len((await archive.command(keep=KEEP).run(ANN)).deleted) == 1
    assert query(archive.url, "SELECT message_id, batch FROM archived_messages") == [
        {"message_id": id, "batch": 3}
    ]
