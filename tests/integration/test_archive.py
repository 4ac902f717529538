"""ArchiveRows on real servers: what leaves, what stays, and that the archive holds every row once."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncIterator
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from relay.adapters.coldstore import FolderStore
from relay.adapters.postgres.ledger import PostgresLedger
from relay.adapters.postgres.row_operations import PostgresOutboxOperations
from relay.adapters.postgres.sql import statement
from relay.devstack import NatsServer
from relay.domain.archive import ArchiveBusy, ArchiveConflict, StoreUnreachable
from relay.domain.errors import NotReplayable
from relay.domain.facts import ArchiveFailed, ArchiveHeld, RowsArchived, StreamLossFound
from tests.integration.archiving import AFTER, ANN, TABLES, Archive, archived
from tests.integration.crowded import ID, repeatable
from tests.integration.publishing import Relay, event, query
from tests.integration.reconciling import command as reconcile
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def archive(database_url: str, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Archive]:
    async with archived(database_url, nats_server.url, tmp_path / "cold") as archive:
        yield archive


async def test_what_has_had_its_time_leaves_each_table_for_the_archive(archive: Archive) -> None:
    ids = {"outbox": await archive.events(3), "inbox": archive.messages(3), "tasks": archive.tasks(3)}
    report = await archive.command().run(ANN)
    for kind, expected in ids.items():
        assert archive.in_table(kind) == []
        assert sorted(archive.in_archive(kind)) == sorted(expected)
        [manifest] = archive.manifests(kind)
        assert (manifest["rows"], manifest["number"]) == (3, 1)
        assert manifest["first_at"] < manifest["last_at"]
        assert (manifest["first_id"], manifest["last_id"]) == (
            str(archive.in_archive(kind)[0]),
            str(archive.in_archive(kind)[-1]),
        )
    assert [manifest.rows for manifest in report.batches] == [3, 3, 3]
    assert [(fact.kind, fact.rows) for fact in archive.facts if isinstance(fact, RowsArchived)] == [
        ("outbox", 3),
        ("inbox", 3),
        ("tasks", 3),
    ]
    assert [(row["actor"], row["action"]) for row in archive.audit()] == [("ann", "archive")] * 3
    assert [row["ids"] for row in archive.audit()] == [[manifest.file] for manifest in report.batches]
    assert [found.error for found in await archive.verified()] == [None] * 3


async def test_a_second_run_finds_nothing_and_a_later_one_goes_on(archive: Archive) -> None:
    first = await archive.events(2)
    await archive.command().run(ANN)
    assert (await archive.command().run(ANN)).batches == []
    second = await archive.events(1)
    await archive.command().run(ANN)
    assert archive.in_archive() == [*first, *second]
    assert [manifest["number"] for manifest in archive.manifests()] == [1, 2]


async def test_what_is_younger_or_has_not_ended_stays(archive: Archive) -> None:
    """Unpublished, dead, replayed, undecided; each in its own way."""
    await archive.events(1, days=89)
    [replayed, *_] = await archive.events(2)
    operate = PostgresOutboxOperations(archive.relay.pool.connection)
    assert (await operate.replay([replayed], ANN)).done
    query(archive.url, "DELETE FROM outbox_events WHERE published_at < now() - interval '95 days'")
    archive.relay.add(event("waiting"))
    for state in ("dead_at = now()", "publish_attempts = 3, publish_error = 'no'"):
        id = archive.relay.add(event(state))[0]
        query(archive.url, f"UPDATE outbox_events SET {state}, occurred_at = '2020-01-01' WHERE id = %s", id)
    for state in (
        "processed_at = NULL",
        "processed_at = NULL, attempts = 5, last_error = 'no'",
        "processed_at = now() - interval '89 days'",
        "stream = NULL",
        "processed_at = NULL, dead_letter_reason = 'no'",
    ):
        query(archive.url, f"UPDATE inbox_messages SET {state} WHERE message_id = %s", archive.messages(1)[0])
    for status in ("pending", "delivered"):
        archive.tasks(1, status)
    query(archive.url, "UPDATE task_outbox SET finished_at = NULL")
    query(archive.url, "UPDATE task_outbox SET finished_at = now() WHERE id = %s", archive.tasks(1)[0])
    before = {kind: archive.in_table(kind) for kind in TABLES}
    assert [len(ids) for ids in before.values()] == [5, 5, 3]
    assert [found.rows for found in (await archive.command().look()).waiting] == [0, 0, 0]
    assert (await archive.command().run(ANN)).batches == []
    assert {kind: archive.in_table(kind) for kind in TABLES} == before
    assert [*archive.root.iterdir()] == []


@pytest.mark.parametrize(
    ("incident", "message", "leaves"),
    [
        (None, "", False),
        ("open", "", False),
        ("requeued", "", False),
        ("resolved", "", True),
        ("discarded", "", True),
        ("discarded", ", requeues = 1", False),
        ("discarded", ", order_key = 'k', order_seq = 1", False),
        ("discarded", ", order_key = 'k', order_seq = 1, stepped_over = true", True),
        ("discarded", ", stream = 'GONE'", False),
        ("discarded", ", dead_lettered_at = now()", False),
        ("closed yesterday", "", False),
    ],
)
async def test_a_dead_letter_leaves_once_its_incident_is_closed(
    archive: Archive, incident: str | None, message: str, leaves: bool
) -> None:
    """Long enough, by this very death, and with its key going on without it."""
    [id] = archive.messages(1)
    died = "dead_lettered_at = now() - interval '100 days'" if "dead_lettered_at" not in message else ""
    changes = ", ".join(filter(None, ("processed_at = NULL", died, message.removeprefix(", "))))
    query(archive.url, f"UPDATE inbox_messages SET {changes} WHERE message_id = %s", id)
    if incident is not None:
        status, days = ("discarded", 1) if incident == "closed yesterday" else (incident, 95)
        closed = None if status == "open" else days
        query(
            archive.url,
            "INSERT INTO dead_letters (message_id, occurrence, subject, class, reason, status, closed_at)"
            " VALUES (%s, 1, 's', 'poison', 'r', %s, now() - make_interval(days => %s))",
            id,
            status,
            closed,
        )
    assert (await archive.command().look()).waiting[1].rows == leaves
    await archive.command().run(ANN)
    assert archive.in_table("inbox") == ([] if leaves else [id])
    assert archive.in_archive("inbox") == ([id] if leaves else [])


async def test_failed_and_cancelled_tasks_leave_as_completed_ones(archive: Archive) -> None:
    ids = [archive.tasks(1, status)[0] for status in ("failed", "cancelled", "completed")]
    await archive.command().run(ANN)
    assert sorted(archive.in_archive("tasks")) == sorted(ids)


async def test_times_are_written_in_utc_whatever_the_database_prefers(archive: Archive) -> None:
    name = query(archive.url, "SELECT current_database() AS name")[0]["name"]
    query(archive.url, f"ALTER DATABASE {name} SET timezone = 'Asia/Tokyo'")
    archive.messages(1)
    async with Relay(archive.url, archive.relay.nats_url, archive.relay.context) as relay:  # new connections
        await Archive(relay, archive.root).command().run(ANN)
    assert json.loads(archive.lines("inbox")[0])["processed_at"].endswith("+00:00")


# --- batches ---


async def test_many_rows_make_many_batches_in_the_order_of_their_ends(archive: Archive) -> None:
    ids = await archive.events(7)
    messages = archive.messages(3)
    report = await archive.command(rows=2).run(ANN)
    assert archive.in_archive() == ids
    assert archive.in_archive("inbox") == messages
    assert [(it.kind.value, it.rows) for it in report.batches] == [
        *[("outbox", 2), ("inbox", 2)],
        *[("outbox", 2), ("inbox", 1)],
        *[("outbox", 2), ("outbox", 1)],
    ]


async def test_a_batch_ends_by_its_size_too(archive: Archive) -> None:
    archive.messages(200)
    report = await archive.command(size=1).run(ANN)
    assert [batch.rows for batch in report.batches] == [50] * 4
    assert len(set(archive.in_archive("inbox"))) == 200


async def test_a_run_ends_when_it_is_told_to(archive: Archive) -> None:
    archive.messages(6)
    answers = iter([True] * 3 + [False] * 9)
    assert len((await archive.command(rows=2).run(ANN, lambda: next(answers))).batches) == 1
    assert len(archive.in_table("inbox")) == 4


async def test_the_size_of_a_batch_does_not_matter_to_memory(archive: Archive) -> None:
    """Rows that hardly compress, 20 KB each: 10 MB of them in one batch, then 60 MB."""

    async def peak_of(rows: int) -> int:
        fill = (
            "INSERT INTO task_outbox (id, type, payload, status, finished_at)"
            " SELECT gen_random_uuid(), 't', to_jsonb((SELECT string_agg(md5((n * 1000 + m)::text), '')"
            " FROM generate_series(1, 625) AS m)), 'completed', now() - interval '100 days'"
            f" FROM generate_series(1, {rows}) AS n"
        )
        query(archive.url, fill)
        tracemalloc.start()
        try:
            report = await archive.command().run(ANN)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert [batch.rows for batch in report.batches] == [rows]
        assert report.batches[0].size > rows * 6_500  # compressed
        return peak

    # What the first run imports, and how far threads overlap, is in both.
    small, large = await peak_of(500), await peak_of(3_000)
    assert large < small + 5_000_000, f"{small:,} bytes, then {large:,}"


async def test_old_rows_are_found_by_an_index(archive: Archive) -> None:
    """Among many that are not old."""
    with psycopg.connect(archive.url, autocommit=True) as conn:
        repeatable(conn)
        conn.execute(_MANY)
        conn.execute("VACUUM ANALYZE outbox_events")
        conn.execute("VACUUM ANALYZE inbox_messages")
        conn.execute("VACUUM ANALYZE task_outbox")
        for name, index in {
            "archive/archive_outbox": "idx_outbox_published",
            "archive/archive_inbox": "idx_inbox_processed",
            "archive/archive_tasks": "idx_task_finished",
            "archive/archivable_outbox": "idx_outbox_published",
        }.items():
            wanted = {"after": AFTER, "streams": ["UP"], "limit": 5_000}
            plan = conn.execute(f"EXPLAIN {statement(name)}".encode(), wanted).fetchall()
            assert index in str(plan), plan
            assert f"Seq Scan on {TABLES[name.partition('_')[2]][0]}" not in str(plan), plan


_MANY = f"""
    WITH events AS (
        INSERT INTO outbox_events (
            id, aggregate_type, aggregate_id, event_type, payload, partition_key, published_at)
        SELECT {ID}, 'a', 'a', 'e', '{{}}', '', now() - n * interval '1 minute'
        FROM generate_series(1, 20000) AS n),
    messages AS (
        INSERT INTO inbox_messages (message_id, subject, stream, received_at, processed_at)
        SELECT {ID}, 's', 'UP', now() - interval '1 year', now() - n * interval '1 minute'
        FROM generate_series(1, 20000) AS n)
    INSERT INTO task_outbox (id, type, payload, status, finished_at)
    SELECT {ID}, 't', '{{}}', 'completed', now() - n * interval '1 minute'
    FROM generate_series(1, 20000) AS n
"""


# --- streams ---


@pytest.mark.parametrize(
    ("max_age", "reason"),
    [(0, "for ever; give it a max_age"), (90 * 86_400, "for 90 days"), (None, "does not exist")],
)
async def test_rows_stay_while_their_stream_may_still_have_the_message(
    archive: Archive, max_age: int | None, reason: str
) -> None:
    """Whatever the configuration says: the server is asked."""
    await archive.events(2)
    archive.messages(2)
    tasks = archive.tasks(1)
    if max_age is None:
        await archive.relay.admin(lambda js: js.delete_stream(archive.relay.stream))
    else:
        await archive.relay.update_stream(max_age=max_age)
    report = await archive.command().run(ANN)
    assert [(held.kind.value, held.stream) for held in report.held] == [
        ("outbox", archive.relay.stream),
        ("inbox", archive.relay.stream),
    ]
    assert all(reason in held.reason for held in report.held)
    assert len([fact for fact in archive.facts if isinstance(fact, ArchiveHeld)]) == 2
    assert [len(archive.in_table(kind)) for kind in TABLES] == [2, 2, 0]
    assert archive.in_archive("tasks") == tasks


async def test_reconciliation_finds_nothing_missing_in_what_is_archived(archive: Archive) -> None:
    """On a stream that expires for real: neither lost events, nor messages that the inbox lacks."""
    relay = archive.relay
    await relay.update_stream(max_age=1, duplicate_window=0.5)
    old = [relay.add(event(f"v{n}"))[0] for n in range(5)]
    await relay.drained()

    async def expired() -> bool:
        return bool((await relay.admin(lambda js: js.stream_info(relay.stream))).state.messages == 0)

    await eventually("the stream has let go of them", expired)
    after = timedelta(seconds=1.5)

    async def gone() -> bool:
        await archive.command(after=after).run(ANN)
        return archive.in_table() == []

    await eventually("they are archived", gone)
    young = [relay.add(event(f"v{n}"))[0] for n in range(3)]
    await relay.drained()
    for turn in range(3):
        assert [report.lost for report in await reconcile(relay).tick(turn)] == [0]
    assert [report.lost for report in await reconcile(relay).everything(repair=True)] == [0]
    assert not [fact for fact in relay.facts if isinstance(fact, StreamLossFound)]
    assert archive.in_archive() == old
    assert sorted(archive.in_table()) == sorted(young)
    await archive.relay.admin(lambda js: js.purge_stream(relay.stream))
    query(archive.url, "DELETE FROM outbox_events")
    assert await reconcile(relay).everything(repair=True) == []


async def test_an_archived_event_is_not_to_be_replayed(archive: Archive) -> None:
    [id] = await archive.events(1)
    await archive.command().run(ANN)
    operate = PostgresOutboxOperations(archive.relay.pool.connection)
    [(_, refusal)] = (await operate.replay([id], ANN)).refused
    assert isinstance(refusal, NotReplayable)


async def test_messages_that_are_still_in_the_stream_stay_known(archive: Archive) -> None:
    [young] = await archive.events(1, days=1)
    query(
        archive.url,
        "INSERT INTO inbox_messages (message_id, subject, stream, stream_seq, processed_at)"
        " VALUES (%s, 's', %s, 1, now())",
        young,
        archive.relay.stream,
    )
    archive.messages(2)
    await archive.command().run(ANN)
    assert await PostgresLedger(archive.relay.pool).known([young]) == {young}
    assert archive.in_table("inbox") == [young]


# --- two at once, and places that fail ---


class Gated(FolderStore):
    """A folder with something happening before a file is stored."""

    def __init__(self, root: Path, before: Any) -> None:
        super().__init__(root)
        self._before = before

    async def put(self, name: str, content: Any) -> None:
        await self._before(name)
        await super().put(name, content)


async def test_of_two_at_once_one_is_refused(archive: Archive) -> None:
    ids = archive.messages(3)
    refused: list[str] = []

    async def other(name: str) -> None:
        if name.endswith(".gz"):
            with pytest.raises(ArchiveBusy) as caught:
                await archive.command().run(ANN)
            refused.append(caught.value.code)
            with pytest.raises(ArchiveBusy):
                await archive.command().tick(lambda: True)

    await archive.command(Gated(archive.root, other)).run(ANN)
    assert refused == ["ARCHIVE_BUSY"]
    assert archive.in_archive("inbox") == ids
    assert not [fact for fact in archive.facts if isinstance(fact, ArchiveFailed)]


@pytest.mark.parametrize("kind", TABLES)
async def test_nobody_changes_a_row_between_its_file_and_its_deletion(archive: Archive, kind: str) -> None:
    await archive.events(1)
    archive.messages(1)
    archive.tasks(1)
    refused: list[str] = []

    async def change(name: str) -> None:
        if f"/{kind}/" in name and name.endswith(".gz"):
            with pytest.raises(psycopg.errors.LockNotAvailable):
                query(archive.url, f"SELECT 1 FROM {TABLES[kind][0]} FOR UPDATE NOWAIT")
            refused.append(name)

    await archive.command(Gated(archive.root, change)).run(ANN)
    assert len(refused) == 1
    assert len(archive.in_archive(kind)) == 1


async def test_a_row_that_is_not_deleted_keeps_its_batch_from_the_archive(archive: Archive) -> None:
    """A trigger of the application, say."""
    ids = await archive.events(3)
    query(archive.url, "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    trigger = f"FOR EACH ROW WHEN (old.id = '{ids[1]}') EXECUTE FUNCTION keep()"
    query(archive.url, f"CREATE TRIGGER keep BEFORE DELETE ON outbox_events {trigger}")
    await archive.command().tick(lambda: True)
    assert [type(fact) for fact in archive.facts] == [ArchiveFailed]
    assert sorted(archive.in_table()) == sorted(ids)
    assert archive.in_archive() == []


async def test_a_row_that_an_operator_holds_is_left_for_the_next_batch(archive: Archive) -> None:
    ids = await archive.events(3)
    async with archive.relay.pool.connection() as held, held.transaction():
        await held.execute(statement("outbox/lock_many"), {"ids": [ids[0]]})
        await archive.command().run(ANN)
        assert archive.in_archive() == ids[1:]
    await archive.command().run(ANN)
    assert sorted(archive.in_archive()) == sorted(ids)


async def test_a_directory_of_another_database_is_refused_and_nothing_is_deleted(archive: Archive) -> None:
    ids = await archive.events(2)
    folder = archive.root / archive.relay.context / "outbox"
    folder.mkdir(parents=True)
    (folder / "00000001.json").write_text("{}")
    with pytest.raises(ArchiveConflict):
        await archive.command().run(ANN)
    assert sorted(archive.in_table()) == sorted(ids)
    await archive.command().tick(lambda: True)
    assert [fact for fact in archive.facts if isinstance(fact, ArchiveFailed)]
    [found] = await archive.verified()
    assert found.left_over


async def test_an_archive_that_is_not_mounted_is_an_outage(archive: Archive) -> None:
    ids = await archive.events(1)
    archive.root.rmdir()
    with pytest.raises(StoreUnreachable):
        await archive.command().tick(lambda: True)
    assert archive.in_table() == ids


async def test_what_is_read_back_wrong_is_not_deleted(archive: Archive) -> None:
    ids = await archive.events(2)

    class Lying(FolderStore):
        async def get(self, name: str, into: Any) -> bool:
            file = BytesIO()
            found = await super().get(name, file)
            into.write(file.getvalue()[: -1 if name.endswith(".gz") else None])
            return found

    await archive.command(Lying(archive.root)).tick(lambda: True)
    assert [type(fact) for fact in archive.facts] == [ArchiveFailed]
    assert archive.in_table() == sorted(ids)
    await archive.command().run(ANN)
    assert archive.in_archive() == ids


async def test_verification_finds_what_is_damaged_missing_or_left_over(archive: Archive) -> None:
    await archive.events(4)
    await archive.command(rows=1).run(ANN)
    folder = archive.root / archive.relay.context / "outbox"
    data, manifests = sorted(folder.glob("*.gz")), sorted(folder.glob("*.json"))
    content = bytearray(data[0].read_bytes())
    content[20] ^= 1
    data[0].write_bytes(content)
    data[1].unlink()
    manifests[2].write_text("{}")
    (folder / f"00000009-{uuid4().hex[:16]}.jsonl.gz").write_bytes(b"")
    findings = await archive.verified()
    errors = [found.error for found in findings if not found.left_over]
    assert "sha256" in str(errors[0]) or "cannot be read" in str(errors[0])
    assert "is missing" in str(errors[1])
    assert "differs from the record" in str(errors[2])
    assert errors[3] is None
    assert [found.file.rpartition("/")[2][:8] for found in findings if found.left_over] == ["00000009"]
