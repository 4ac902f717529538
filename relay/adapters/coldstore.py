"""ColdStore in a folder, on a local or a mounted disk."""

from __future__ import annotations

import asyncio
import filecmp
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, TypeVar

from relay.domain.archive import ArchiveConflict, StoreUnreachable

Answer = TypeVar("Answer")

#: What an operator can do if the file of a batch that was not recorded has the name.
MOVE_AWAY: Final = "move it away: no batch has it; relay archive verify names all such files"
_UNFINISHED: Final = ".part"


class FolderStore:
    """Stores files in a folder. Only their owner can read them.

    A file is synced, then renamed to its name, then its folder is synced. The root folder is never made: if a disk
    is not mounted, nothing must be written into its mount point.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, name: str, content: IO[bytes]) -> None:
        await self._do(lambda: self._put(self._root / name, content))

    async def get(self, name: str, into: IO[bytes]) -> bool:
        return await self._do(lambda: _get(self._root / name, into))

    async def delete(self, name: str) -> None:
        await self._do(lambda: self._delete(self._root / name))

    async def names(self, prefix: str) -> Sequence[str]:
        return await self._do(lambda: sorted(self._names(prefix)))

    async def _do(self, work: Callable[[], Answer]) -> Answer:
        return await asyncio.to_thread(self._reaching, work)

    def _reaching(self, work: Callable[[], Answer]) -> Answer:
        if not self._root.is_dir():
            raise StoreUnreachable(
                f"{self._root} is no directory", hint="create it, or mount what is meant to be there"
            )
        try:
            return work()
        except OSError as error:
            raise StoreUnreachable(f"{error.filename or self._root}: {error.strerror or error}") from error

    def _put(self, target: Path, content: IO[bytes]) -> None:
        self._make(target.parent)
        content.seek(0)
        with _part_of(target) as part:
            shutil.copyfileobj(content, part)
            part.flush()
            os.fsync(part.fileno())
            if target.exists() and not filecmp.cmp(part.name, target, shallow=False):
                raise ArchiveConflict(f"{target} is there already and holds something else", hint=MOVE_AWAY)
            Path(part.name).replace(target)
        _sync(target.parent)

    def _make(self, folder: Path) -> None:
        """Make a folder, and sync its name to disk."""
        if folder != self._root and not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            _sync(folder.parent)

    def _delete(self, target: Path) -> None:
        if target.exists():
            target.unlink()
            _sync(target.parent)

    def _names(self, prefix: str) -> Iterator[str]:
        folder, _, beginning = prefix.rpartition("/")
        for path in (self._root / folder).glob(f"{beginning}*"):
            yield path.relative_to(self._root).as_posix()


@contextmanager
def _part_of(target: Path) -> Iterator[IO[bytes]]:
    """A file beside its target that no other process writes. It is removed if it was not renamed."""
    with tempfile.NamedTemporaryFile(
        prefix=f"{target.name}.", suffix=_UNFINISHED, dir=target.parent, delete=False
    ) as part:
        try:
            yield part
        finally:
            Path(part.name).unlink(missing_ok=True)


def _get(source: Path, into: IO[bytes]) -> bool:
    try:
        with source.open("rb") as file:
            shutil.copyfileobj(file, into)
    except FileNotFoundError:
        return False
    return True


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
