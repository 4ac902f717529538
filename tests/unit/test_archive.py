"""What the archive decides and writes: names, manifests, files, and which streams keep rows from it."""

from __future__ import annotations

import gzip
import io
import json
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from relay.commands import batchfile
from relay.commands.archive import held_back
from relay.commands.batchfile import BatchFile
from relay.commands.reconcile import StreamState
from relay.domain.archive import ArchiveDamaged, ArchivedRow, ArchiveKind, Manifest

AT = datetime(2026, 1, 31, 3, tzinfo=UTC)
DAY = timedelta(days=1)


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
    contents = batchfile.read(file, kind)
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


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"something else",
        lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
        lambda data: data + data,
        lambda data: gzip.compress(gzip.decompress(data), mtime=1),
        lambda data: gzip.compress(b'{"id": 5}\n'),
        lambda data: gzip.compress(b"[]\n"),
    ],
)
def test_damage_is_seen(damage) -> None:  # type: ignore[no-untyped-def]
    file, manifest = written()
    with pytest.raises(ArchiveDamaged):
        batchfile.check(batchfile.read(io.BytesIO(damage(file.getvalue())), manifest.kind), manifest)


def test_a_missing_row_is_seen_even_if_the_bytes_were_as_said() -> None:
    file, manifest = written()
    contents = batchfile.read(file, manifest.kind)
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
    state = StreamState(first_seq=1, last_seq=1, created=AT, max_age=max_age, duplicate_window=DAY)
    reason = held_back(state, 90 * DAY)
    assert reason is None if expected is None else expected in str(reason)


def test_rows_stay_when_nobody_knows_their_stream() -> None:
    assert "does not exist" in str(held_back(None, 90 * DAY))
