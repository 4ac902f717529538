"""What the archive decides and writes: names, manifests, files, and which streams keep rows from it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tempfile
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from relay.commands import batchfile
from relay.commands.archive import held_back, read_back
from relay.commands.batchfile import BatchFile
from relay.commands.reconcile import AuditedStream
from relay.domain.archive import ArchiveDamaged, ArchivedRow, ArchiveKind, Manifest, RowFilter, StoreUnreachable
from relay.testing.archive import MemoryColdStore

pytestmark = pytest.mark.anyio

AT = datetime(2026, 1, 31, 3, tzinfo=UTC)
DAY = timedelta(days=1)
TICK = timedelta(microseconds=1)
INDIA = timezone(timedelta(hours=5, minutes=30))


def rows(count: int, key: str = "id") -> list[ArchivedRow]:
    ids = [UUID(int=number) for number in range(count)]
    return [ArchivedRow(id, AT + n * DAY, json.dumps({key: str(id), "text": "é\n"})) for n, id in enumerate(ids)]


def written(count: int = 3, kind: ArchiveKind = ArchiveKind.OUTBOX) -> tuple[io.BytesIO, Manifest]:
    file = io.BytesIO()
    draft = BatchFile(file)
    draft.write(rows(count, kind.key))
    return file, draft.finish("sea", kind, 7)


@pytest.mark.parametrize("kind", ArchiveKind)
def test_what_is_written_is_read_back(kind: ArchiveKind) -> None:
    file, manifest = written(3, kind)
    contents = batchfile.read(file, manifest)
    batchfile.check(contents, manifest)
    assert contents.ids == [UUID(int=number) for number in range(3)]
    assert (manifest.rows, manifest.size) == (3, len(file.getvalue()))
    assert (manifest.first_at, manifest.last_at) == (AT, AT + 2 * DAY)
    assert gzip.decompress(file.getvalue()).count(b"\n") == 3


def test_the_same_rows_make_the_same_file_and_manifest() -> None:
    one, other = written(), written()
    assert one[0].getvalue() == other[0].getvalue()
    assert one[1].text() == other[1].text()


def test_other_rows_make_another_name() -> None:
    assert written(3)[1].file != written(4)[1].file
    assert written(3)[1].name == written(4)[1].name == "sea/outbox/00000007.json"


def test_a_manifest_says_all_that_is_needed_without_the_database() -> None:
    _, manifest = written()
    said = json.loads(manifest.text())
    assert said["format"] == "jetrelay-archive/1"
    assert f"sea/outbox/{said['file']}" == manifest.file
    assert (said["context"], said["kind"], said["number"], said["rows"]) == ("sea", "outbox", 7, 3)
    assert (said["first_id"], said["first_at"]) == (str(UUID(int=0)), "2026-01-31T03:00:00+00:00")
    assert (said["last_id"], said["last_at"]) == (str(UUID(int=2)), "2026-02-02T03:00:00+00:00")
    assert (said["size"], said["sha256"]) == (manifest.size, manifest.sha256)


DAMAGES = [
    lambda data: data[:-1],
    lambda data: data[: len(data) // 2],
    lambda data: b"",
    lambda data: b"something else",
    lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
    lambda data: data + data,
    lambda data: gzip.compress(gzip.decompress(data), mtime=1),
    lambda data: gzip.compress(b'{"id": 5}\n'),
    lambda data: gzip.compress(b"[]\n"),
    lambda data: written(4)[0].getvalue(),  # of another batch
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_seen(damage) -> None:  # type: ignore[no-untyped-def]
    file, manifest = written()
    with pytest.raises(ArchiveDamaged):
        batchfile.check(batchfile.read(io.BytesIO(damage(file.getvalue())), manifest), manifest)


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_row_of_a_damaged_file_comes_back(damage) -> None:  # type: ignore[no-untyped-def]
    file, manifest = written()
    assert len([*batchfile.lines(file, manifest)]) == 3
    with pytest.raises(ArchiveDamaged):
        [*batchfile.lines(io.BytesIO(damage(file.getvalue())), manifest)]


def test_no_room_for_a_temporary_file_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "away"))
    with pytest.raises(StoreUnreachable, match="No such file"), batchfile.spool():
        pytest.fail("there is no file")


def test_an_id_is_read_wherever_it_stands() -> None:
    data = gzip.compress(f'{{"text": "é", "id": "{UUID(int=7)}"}}\n'.encode())
    manifest = replace(written()[1], size=len(data), sha256=hashlib.sha256(data).hexdigest())
    assert batchfile.read(io.BytesIO(data), manifest).ids == [UUID(int=7)]


BOMB = gzip.compress(b"[" * 50_000_000)


@pytest.mark.parametrize("padded", [False, True])
async def test_a_file_that_somebody_else_put_there_is_not_unpacked(padded: bool) -> None:
    """Neither one of another digest, nor one of another size; and of a large one no more is copied."""
    _, manifest = written()
    manifest = replace(manifest, size=len(BOMB)) if padded else manifest
    store, room = MemoryColdStore(), io.BytesIO()
    await store.put(manifest.file, io.BytesIO(BOMB))
    tracemalloc.start()
    with pytest.raises(ArchiveDamaged):
        await read_back(store, manifest)
    if padded:
        await batchfile.fetch(store, manifest.file, room, manifest.size)
        with pytest.raises(ArchiveDamaged):
            [*batchfile.lines(room, manifest)]
    else:
        with pytest.raises(ArchiveDamaged):
            await batchfile.fetch(store, manifest.file, room, manifest.size)
    assert len(room.getvalue()) <= manifest.size
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("since", "until", "selected"),
    [
        (AT, None, True),  # included
        (AT + TICK, None, False),
        (None, AT, False),  # excluded
        (None, AT + TICK, True),
        (AT, AT + TICK, True),
        (AT, AT, False),
        (AT.astimezone(INDIA), None, True),
        (AT.astimezone(INDIA).replace(tzinfo=UTC), None, False),
        (None, AT.astimezone(INDIA), False),
    ],
)
def test_times_bound_rows_and_batches_to_the_microsecond(
    since: datetime | None, until: datetime | None, selected: bool
) -> None:
    """And whatever the zone: PostgreSQL writes UTC, and no digits where there are none."""
    wanted = RowFilter(since=since, until=until)
    at = "2026-01-31T03:00:00+00:00"
    row = {"id": str(UUID(int=1)), "event_type": "e", "partition_key": "k", "published_at": at}
    assert wanted.fits(ArchiveKind.OUTBOX, row, lambda _row: None) is selected
    assert not selected or wanted.may_be_in(written(1)[1])  # whose only row ended then
    fraction = row | {"published_at": "2026-01-31T03:00:00.5+00:00"}
    assert RowFilter(since=AT + TICK).fits(ArchiveKind.OUTBOX, fraction, lambda _row: None)


def test_a_batch_is_opened_unless_all_of_it_is_too_early_or_too_late() -> None:
    batch = written(3)[1]  # from AT to AT + 2 days
    assert RowFilter(since=AT + 2 * DAY).may_be_in(batch)
    assert not RowFilter(since=AT + 2 * DAY + TICK).may_be_in(batch)
    assert RowFilter(until=AT + TICK).may_be_in(batch)
    assert not RowFilter(until=AT).may_be_in(batch)


def test_a_missing_row_is_seen_even_if_the_bytes_were_as_said() -> None:
    file, manifest = written()
    contents = batchfile.read(file, manifest)
    fewer = batchfile.Contents(contents.size, contents.sha256, contents.ids[:-1])
    with pytest.raises(ArchiveDamaged, match="has rows 2; the manifest says 3"):
        batchfile.check(fewer, manifest)
    other = batchfile.Contents(contents.size, contents.sha256, [*contents.ids[:-1], uuid4()])
    with pytest.raises(ArchiveDamaged, match="last id"):
        batchfile.check(other, manifest)


@pytest.mark.parametrize(
    ("max_age", "expected"),
    [(89 * DAY, None), (90 * DAY, "archive.after must be longer"), (91 * DAY, "longer"), (None, "for ever")],
)
def test_rows_stay_while_their_stream_may_hold_the_message(
    max_age: timedelta | None, expected: str | None
) -> None:
    state = AuditedStream(first_seq=1, last_seq=1, created=AT, max_age=max_age, duplicate_window=DAY)
    reason = held_back(state, 90 * DAY)
    assert reason is None if expected is None else expected in str(reason)


def test_rows_stay_when_nobody_knows_their_stream() -> None:
    assert "does not exist" in str(held_back(None, 90 * DAY))
