"""The folder that files are archived to: whole or not at all, never changed, never anywhere else."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path
from stat import S_ISDIR

import pytest

from relay.adapters.coldstore import FolderStore
from relay.domain.archive import ArchiveConflict, StoreUnreachable

pytestmark = pytest.mark.anyio
NAME = "sea/outbox/00000001.json"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


async def content(store: FolderStore, name: str = NAME) -> bytes | None:
    into = io.BytesIO()
    return into.getvalue() if await store.get(name, into) else None


async def test_what_is_put_is_got(store: FolderStore) -> None:
    assert await content(store) is None
    file = io.BytesIO(b"rows")
    file.seek(2)  # where the writer left it
    await store.put(NAME, file)
    assert await content(store) == b"rows"


async def test_the_same_again_is_no_conflict_and_anything_else_is(store: FolderStore) -> None:
    await store.put(NAME, io.BytesIO(b"rows"))
    await store.put(NAME, io.BytesIO(b"rows"))
    with pytest.raises(ArchiveConflict):
        await store.put(NAME, io.BytesIO(b"rowz"))
    assert await content(store) == b"rows"
    assert await store.names("") == ["sea"]
    assert await store.names("sea/outbox/") == [NAME]


async def test_names_are_those_of_one_folder_in_order(store: FolderStore) -> None:
    for number in (2, 1, 10):
        await store.put(f"sea/outbox/{number:08d}.json", io.BytesIO(b""))
    await store.put("sea/inbox/00000001.json", io.BytesIO(b""))
    assert [name[-7:-5] for name in await store.names("sea/outbox/")] == ["01", "02", "10"]
    assert await store.names("sea/tasks/") == []


async def test_what_fails_half_way_leaves_nothing(store: FolderStore) -> None:
    class Torn(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 0:
                raise OSError(5, "Input/output error")
            return super().read(10)

    with pytest.raises(StoreUnreachable, match="Input/output error"):
        await store.put(NAME, Torn(b"r" * 100))
    assert await content(store) is None
    assert await store.names("sea/outbox/") == []


async def test_it_is_on_disk_before_it_has_its_name(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after the rename must not leave a name without content; one before it no name."""
    seen: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        seen.append("sync " + ("folder" if S_ISDIR(os.fstat(descriptor).st_mode) else "file"))
        fsync(descriptor)

    def replaced(self: Path, target: Path) -> Path:
        seen.append("rename")
        return replace(self, target)

    await store.put("sea/outbox/0", io.BytesIO(b""))
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    await store.put(NAME, io.BytesIO(b"rows"))
    assert seen == ["sync file", "rename", "sync folder"]


async def test_payloads_are_for_their_owner_only(store: FolderStore, tmp_path: Path) -> None:
    await store.put(NAME, io.BytesIO(b"rows"))
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / NAME).parent.stat().st_mode & 0o777 == 0o700


async def test_a_folder_that_is_not_there_is_an_outage_and_is_not_made(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "unmounted")
    with pytest.raises(StoreUnreachable, match=r"not a directory.*mount"):
        await store.put(NAME, io.BytesIO(b"rows"))
    with pytest.raises(StoreUnreachable):
        await store.get(NAME, io.BytesIO())
    assert not await asyncio.to_thread((tmp_path / "unmounted").exists)
