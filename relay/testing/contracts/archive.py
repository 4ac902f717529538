"""The contracts of the archive: cold storage, and the tables that rows leave."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, suppress
from datetime import timedelta
from io import BytesIO
from typing import Final, Protocol
from uuid import UUID

from relay.domain.archive import ArchiveConflict, ArchivedRow, ArchiveKind, Manifest
from relay.domain.operators import Operator
from relay.ports import ArchiveTables, ColdStore, OpenBatch

_DAY: Final = timedelta(days=1)
_AFTER: Final = 30 * _DAY
_ANN: Final = Operator("ann")


class ColdStoreBench(Protocol):
    """Cold storage without a file."""

    @property
    def store(self) -> ColdStore:
        """The adapter."""


class ColdStoreContract:
    """Needs the fixture ``bench``: a `ColdStoreBench`."""

    async def test_a_file_is_read_as_it_was_written_and_may_be_written_again(self, bench: ColdStoreBench) -> None:
        for _ in range(2):
            await bench.store.put("sea/outbox/1.gz", BytesIO(b"\x00 content"))
        into = BytesIO()
        assert await bench.store.get("sea/outbox/1.gz", into)
        assert into.getvalue() == b"\x00 content"
        assert not await bench.store.get("sea/outbox/2.gz", BytesIO())

    async def test_a_file_never_changes(self, bench: ColdStoreBench) -> None:
        await bench.store.put("sea/outbox/1.gz", BytesIO(b"one"))
        try:
            await bench.store.put("sea/outbox/1.gz", BytesIO(b"other"))
        except ArchiveConflict:
            into = BytesIO()
            await bench.store.get("sea/outbox/1.gz", into)
            assert into.getvalue() == b"one"
        else:
            raise AssertionError("it was overwritten")

    async def test_names_are_told_in_order_by_their_beginning(self, bench: ColdStoreBench) -> None:
        names = ["sea/outbox/2.gz", "sea/outbox/1.json", "sea/outbox/1.gz", "sea/inbox/1.gz"]
        for name in names:
            await bench.store.put(name, BytesIO(name.encode()))
        assert await bench.store.names("sea/outbox/") == sorted(names[:3])
        assert await bench.store.names("sea/outbox/1.g") == ["sea/outbox/1.gz"]
        assert await bench.store.names("sky/") == []

    async def test_a_deleted_file_is_gone_and_deleting_may_be_repeated(self, bench: ColdStoreBench) -> None:
        for name in ("sea/outbox/1.gz", "sea/outbox/2.gz"):
            await bench.store.put(name, BytesIO(b"one"))
        for _ in range(2):
            await bench.store.delete("sea/outbox/1.gz")
            assert await bench.store.names("sea/outbox/") == ["sea/outbox/2.gz"]
            assert not await bench.store.get("sea/outbox/1.gz", BytesIO())
        await bench.store.put("sea/outbox/1.gz", BytesIO(b"another"))


class ArchiveBench(Protocol):
    """Tables without rows."""

    @property
    def tables(self) -> ArchiveTables:
        """The adapter."""

    async def publish(self, stream: str, age: timedelta) -> UUID:
        """Put an event into the outbox that was published to a stream so long ago; returns its id."""


class ArchiveContract:
    """Needs the fixture ``bench``: an `ArchiveBench`."""

    async def test_a_batch_has_old_rows_of_its_streams_the_oldest_first(self, bench: ArchiveBench) -> None:
        second, first, third = [await bench.publish("SEA", _AFTER + days * _DAY) for days in (2, 3, 1)]
        await bench.publish("SEA", _AFTER - _DAY)
        await bench.publish("SKY", _AFTER + _DAY)
        assert sorted(await bench.tables.streams(ArchiveKind.OUTBOX)) == ["SEA", "SKY"]
        async with _open(bench, limit=2) as batch:
            assert [row.id for row in await _rows(batch)] == [first, second]
        count, oldest, latest = await bench.tables.waiting(ArchiveKind.OUTBOX, ["SEA"], _AFTER)
        assert oldest is not None
        assert latest is not None
        assert (count, latest - oldest > _DAY) == (3, True)
        async with _open(bench) as batch:
            assert [row.id for row in await _rows(batch)] == [first, second, third]

    async def test_one_batch_is_open_at_a_time(self, bench: ArchiveBench) -> None:
        async with _open(bench) as batch, _open(bench) as another:
            assert batch is not None
            assert another is None
        async with _open(bench) as batch:
            assert batch is not None

    async def test_rows_leave_with_their_batch_or_not_at_all(self, bench: ArchiveBench) -> None:
        await bench.publish("SEA", 2 * _AFTER)
        with suppress(ZeroDivisionError):
            async with _open(bench) as batch:
                await _remove(batch)
                _ = 1 / 0
        assert await bench.tables.batches() == []
        async with _open(bench) as batch:
            first = await _remove(batch)
        assert await bench.tables.batches() == [first]
        async with _open(bench) as batch:
            assert batch is not None
            assert (batch.number, await _rows(batch)) == (first.number + 1, [])

    async def test_a_batch_is_unannounced_until_its_manifest_is_stored(self, bench: ArchiveBench) -> None:
        for _ in range(2):
            await bench.publish("SEA", 2 * _AFTER)
        async with _open(bench, limit=1) as batch:
            first = await _remove(batch)
        async with _open(bench, limit=1) as batch:
            second = await _remove(batch)
        await bench.tables.announced(first)
        assert await bench.tables.batches(unannounced=True) == [second]
        assert await bench.tables.batches() == [first, second]

    async def test_a_batch_expires_by_its_newest_row_and_until_it_is_gone(self, bench: ArchiveBench) -> None:
        for days in (30, 10):
            await bench.publish("SEA", _AFTER + days * _DAY)
            async with _open(bench) as batch:
                removed = await _remove(batch)
            await bench.tables.announced(removed)
        first, second = await bench.tables.batches()
        assert await bench.tables.expired(_AFTER + 31 * _DAY) == []
        assert await bench.tables.expired(_AFTER + 20 * _DAY) == [first]
        for _ in range(2):
            await bench.tables.delete(first, [], _ANN)
            assert await bench.tables.batches() == [second]
            assert await bench.tables.expired(_AFTER + 50 * _DAY) == [first]
        await bench.tables.gone(first)
        assert await bench.tables.expired(_AFTER + 50 * _DAY) == []
        await bench.publish("SEA", _AFTER + _DAY)
        async with _open(bench) as batch:
            assert batch is not None
            assert batch.number == second.number + 1


def _open(bench: ArchiveBench, limit: int = 10) -> AbstractAsyncContextManager[OpenBatch | None]:
    return bench.tables.open(ArchiveKind.OUTBOX, ["SEA"], _AFTER, limit)


async def _rows(batch: OpenBatch | None) -> list[ArchivedRow]:
    assert batch is not None
    return [row async for page in batch.rows() for row in page]


async def _remove(batch: OpenBatch | None) -> Manifest:
    """Take all rows of a batch from their table."""
    assert batch is not None
    rows = await _rows(batch)
    manifest = Manifest(
        context="sea",
        kind=ArchiveKind.OUTBOX,
        number=batch.number,
        rows=len(rows),
        size=1,
        sha256="0" * 64,
        first_id=rows[0].id,
        first_at=rows[0].at,
        last_id=rows[-1].id,
        last_at=rows[-1].at,
    )
    assert await batch.remove([row.id for row in rows], manifest, _ANN) == len(rows)
    return manifest
