"""ColdStore in a bucket of S3, or of a store with the same API. It needs ``jetrelay[s3]``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any

from relay.adapters.coldstore import MOVE_AWAY
from relay.domain.archive import ArchiveConflict, StoreUnreachable
from relay.domain.disclosure import first_line
from relay.domain.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

#: While a batch is stored, its rows are locked, and PostgreSQL ends its transaction after a minute of silence.
_RETRY: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
_CLIENT: ClientConfig = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=30)}


class BucketStore:
    """Stores files as objects. Writes only names that are free, by If-None-Match: one of two writers fails.

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
                        f"{self._url}/{name} is there already and holds something else", hint=MOVE_AWAY
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
                f"{self._url}: there is no such bucket", hint="create it; jetrelay never does"
            ) from error
        except (self._obstore.exceptions.BaseError, OSError, NotImplementedError) as error:
            raise StoreUnreachable(f"{self._url}: {first_line(error)}") from error
