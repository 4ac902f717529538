"""A batch of the archive as a compressed file with one JSON row per line. The same rows make the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import IO, Final, cast
from uuid import UUID

from relay.domain.archive import ArchiveDamaged, ArchivedRow, ArchiveKind, Manifest, StoreUnreachable
from relay.domain.foreign_json import read_json
from relay.ports import ColdStore

#: The level of gzip. Level 9 takes twice as long, for files that are only a thirtieth smaller.
_LEVEL: Final = 4
_UUID_CHARS: Final = 36
#: How many lines are in memory while a batch is written anew.
_PAGE_ROWS: Final = 20
_FIRST: Final = {kind: f'{{"{kind.key}":"'.encode() for kind in ArchiveKind}


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file holds: its size, its digest and the ids of its rows."""

    size: int
    sha256: str
    ids: Sequence[UUID]


class BatchFile:
    """A batch that is being written, to a temporary file, so that its size needs no memory. Blocks."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        # Without a time or a name in its header, the same rows make the same bytes.
        self._gzip = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=_LEVEL)
        self.ids: list[UUID] = []
        self._times: list[datetime] = []
        #: The size in bytes, before compression.
        self.size = 0

    def write(self, rows: Sequence[ArchivedRow]) -> None:
        """Append rows, at least one."""
        lines = "".join([f"{row.line}\n" for row in rows]).encode()
        self._gzip.write(lines)
        self.size += len(lines)
        self.ids += [row.id for row in rows]
        self._times += [rows[0].at, rows[-1].at]

    def finish(self, context: str, kind: ArchiveKind, number: int) -> Manifest:
        """Write the rest and describe the batch, which must have at least one row."""
        self._gzip.close()
        size, sha256 = _measure(self.file)
        return Manifest(
            context=context,
            kind=kind,
            number=number,
            rows=len(self.ids),
            size=size,
            sha256=sha256,
            first_id=self.ids[0],
            first_at=self._times[0],
            last_id=self.ids[-1],
            last_at=self._times[-1],
        )


class _Room:
    """A file that takes only so many bytes."""

    def __init__(self, name: str, file: IO[bytes], size: int) -> None:
        self._name, self._file, self._left = name, file, size

    def write(self, part: bytes) -> int:
        self._left -= len(part)
        if self._left < 0:
            raise ArchiveDamaged(f"{self._name} is larger than its manifest says", hint="relay archive verify")
        return self._file.write(part)


@contextmanager
def spool() -> Iterator[IO[bytes]]:
    """A temporary file that is deleted afterwards. Raises StoreUnreachable where it has no room."""
    try:
        with tempfile.TemporaryFile(prefix="jetrelay-archive-") as file:
            yield file
    except OSError as error:
        raise StoreUnreachable(
            f"no temporary file: {error.strerror or error}", hint="make room for a batch, or name a disk in TMPDIR"
        ) from error


def read(file: IO[bytes], manifest: Manifest) -> Contents:
    """Read a whole batch. Raises ArchiveDamaged. Blocks. A file of another digest is not unpacked."""
    size, sha256 = _measure(file)
    if (size, sha256) != (manifest.size, manifest.sha256):
        return Contents(size, sha256, ())
    try:
        with gzip.open(file, "rb") as lines:
            ids = [_id(line, manifest.kind) for line in lines]
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArchiveDamaged(f"cannot be read: {type(error).__name__}: {error}"[:300]) from error
    return Contents(size, sha256, ids)


def _id(line: bytes, kind: ArchiveKind) -> UUID:
    """The id of a row. It comes first, unless an operator made the table again with another order of columns."""
    found = line.startswith(_FIRST[kind]) and line[len(_FIRST[kind]) :][:_UUID_CHARS].decode()
    return UUID(found or read_json(line)[kind.key])


def lines(file: IO[bytes], manifest: Manifest) -> Iterator[bytes]:
    """The rows of a batch, without line ends. Raises ArchiveDamaged if they are not what it says. Blocks."""
    size, sha256 = _measure(file)
    if (size, sha256) != (manifest.size, manifest.sha256):
        raise ArchiveDamaged(f"{manifest.file} is not what its manifest says", hint="relay archive verify")
    with gzip.open(file, "rb") as found:
        for line in found:
            yield line.removesuffix(b"\n")


def rewrite(
    file: IO[bytes], manifest: Manifest, into: IO[bytes], change: Callable[[str], str]
) -> tuple[Manifest, int]:
    """Write a batch anew, each line as ``change`` returns it. Returns what it is then, and how many lines changed.

    Raises ArchiveDamaged if it is not what its manifest says. Blocks.
    """
    draft, count = BatchFile(into), 0
    page: list[ArchivedRow] = []
    for line in lines(file, manifest):
        old = line.decode()
        new = change(old)
        count += new != old
        page.append(ArchivedRow(_id(line, manifest.kind), manifest.last_at, new))
        if len(page) == _PAGE_ROWS:
            draft.write(page)
            page = []
    if page:
        draft.write(page)
    made = draft.finish(manifest.context, manifest.kind, manifest.number)
    return replace(made, first_at=manifest.first_at), count


async def fetch(store: ColdStore, name: str, into: IO[bytes], size: int) -> bool:
    """Copy a file of the store; False if there is none. Raises ArchiveDamaged if it has more bytes than ``size``.

    So nobody unpacks, or has room for, what somebody else has put there.
    """
    return await store.get(name, cast("IO[bytes]", _Room(name, into, size)))


def check(contents: Contents, manifest: Manifest) -> None:
    """Compare a file with its manifest. Raises ArchiveDamaged."""
    ids = contents.ids
    found = (contents.size, contents.sha256, len(ids), ids[0] if ids else None, ids[-1] if ids else None)
    said = (manifest.size, manifest.sha256, manifest.rows, manifest.first_id, manifest.last_id)
    for what, is_, should in zip(("size", "sha256", "rows", "first id", "last id"), found, said, strict=True):
        if is_ != should:
            raise ArchiveDamaged(f"{manifest.file} has {what} {is_}; the manifest says {should}")


def _measure(file: IO[bytes]) -> tuple[int, str]:
    """The size of a file and the digest of its content. Afterwards the file is at its start."""
    size = file.seek(0, 2)
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    file.seek(0)
    return size, digest
