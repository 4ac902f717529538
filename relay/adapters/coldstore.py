"""ColdStore in a folder, on a local or a mounted disk, or in a bucket of S3 or a store with the same API."""

from __future__ import annotations

import asyncio
import filecmp
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

from relay.domain.archive import ArchiveConflict, StoreUnreachable
from relay.domain.disclosure import first_line
from relay.domain.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

Answer = TypeVar("Answer")

#: What an operator can do if the file of a batch that was not recorded has the name.
MOVE_AWAY: Final = "move it away: it belongs to no batch; relay archive verify names all such files"
_UNFINISHED: Final = ".part"
#: While a batch is stored, its rows are locked, and PostgreSQL ends its transaction after a minute of silence.
_RETRY: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
_CLIENT: ClientConfig = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=30)}


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
                f"{self._root} is not a directory", hint="create it, or mount the disk that should be there"
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
                raise ArchiveConflict(f"{target} exists already, with other content", hint=MOVE_AWAY)
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


# --- in a bucket ---


class BucketStore:
    """Stores files as objects. It needs ``jetrelay[s3]``.

    Writes only names that are free, by If-None-Match: one of two writers fails.

    ``url``: ``s3://bucket`` or ``s3://bucket/prefix``. ``options``: those of obstore's S3Store. Missing ones come
    from the AWS_… variables or the role of the machine. Raises ConfigurationError for an option that it does not
    know.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        try:
            import obstore  # noqa: PLC0415 - an extra
            from obstore.store import S3Store  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError(
                "not installed: obstore, which archives to a bucket", hint="pip install 'jetrelay[s3]'"
            ) from error
        self._url, self._obstore = url, obstore
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        plain = options.get("endpoint", "").startswith("http://")
        given: dict[str, Any] = dict(options)
        try:
            self._store = S3Store(
                bucket,
                prefix=prefix.strip("/") or None,
                client_options={**_CLIENT, "allow_http": plain},
                retry_config=_RETRY,
                **given,
            )
        except obstore.exceptions.BaseError as error:
            raise ConfigurationError(f"the archive in {url}: {first_line(error)}") from error

    async def put(self, name: str, content: IO[bytes]) -> None:
        content.seek(0)
        read = content.read()
        with self._reaching():
            try:
                # In one request, so that it is stored complete or not at all, and never over another object.
                await self._obstore.put_async(self._store, name, read, mode="create", use_multipart=False)
            except self._obstore.exceptions.AlreadyExistsError:
                # This also happens if an earlier try stored it and its answer was lost.
                found = await self._obstore.get_async(self._store, name)
                if bytes(await found.bytes_async()) != read:
                    raise ArchiveConflict(
                        f"{self._url}/{name} exists already, with other content", hint=MOVE_AWAY
                    ) from None

    async def get(self, name: str, into: IO[bytes]) -> bool:
        with self._reaching():
            try:
                found = await self._obstore.get_async(self._store, name)
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return False
            async for part in found.stream():
                into.write(part)
        return True

    async def names(self, prefix: str) -> Sequence[str]:
        folder = prefix.rpartition("/")[0]
        with self._reaching():
            pages = self._obstore.list(self._store, prefix=folder or None)
            return sorted([it["path"] async for page in pages for it in page if it["path"].startswith(prefix)])

    async def delete(self, name: str) -> None:
        with self._reaching():
            try:
                await self._obstore.delete_async(self._store, name)
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise StoreUnreachable(
                f"{self._url}: there is no such bucket", hint="create it; jetrelay never creates a bucket"
            ) from error
        except (self._obstore.exceptions.BaseError, OSError, NotImplementedError) as error:
            raise StoreUnreachable(f"{self._url}: {first_line(error)}") from error
