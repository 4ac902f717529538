"""The table ``archive`` of a context: when rows leave, and where they go."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from relay.settings.section import Section
from relay.settings.values import AbsolutePath, Duration, only

#: The keys that only a bucket has.
OF_BUCKET: Final = frozenset({"bucket", "endpoint", "region", "access_key_id", "secret_access_key", "options"})
#: A shorter time would take rows away from operators who look at them, in tiny batches.
_SHORTEST: Final = timedelta(hours=1)
_LONGEST: Final = timedelta(days=3650)
#: The bounds of MicroDAO §17. `relay health` warns of others, which tests and demonstrations have.
USUAL: Final = (timedelta(days=90), timedelta(days=365))


def _is_bucket(value: str) -> bool:
    parts = urlsplit(value)
    return parts.scheme == "s3" and bool(parts.netloc) and not {*"@?#"} & {*value}


def _is_endpoint(value: str) -> bool:
    parts = urlsplit(value)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc


def _in_bounds(value: timedelta) -> timedelta:
    if not _SHORTEST <= value <= _LONGEST:
        raise ValueError("must be 1h to 10y; 90d to 365d is usual")
    return value


After = Annotated[Duration, AfterValidator(_in_bounds)]
BucketUrl = Annotated[str, only(_is_bucket, 'is not a bucket; write "s3://name" or "s3://name/prefix"')]
Endpoint = Annotated[str, only(_is_endpoint, 'is not an address; write "https://s3.example" without a user')]


class ArchiveSettings(Section):
    """When rows are archived, and where: ``after`` counts from published, processed, closed or finished.

    ``after`` must be longer than any stream keeps messages. One of two places: ``directory``, which must exist on
    every worker, or ``bucket``, of S3 or of a compatible store. ``keep``: a batch is deleted when
    its newest row ended so long ago; without it never.

    ``endpoint`` and ``region`` are for the bucket. Without ``access_key_id`` and ``secret_access_key`` the usual
    AWS_… variables and the role of the machine are used. ``options`` go to the store as
    they are (``aws_sse_kms_key_id``).
    """

    after: After | None = None
    keep: Duration | None = None
    directory: AbsolutePath | None = None
    bucket: BucketUrl | None = None
    endpoint: Endpoint | None = None
    region: str | None = None
    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None
    options: dict[str, SecretStr] = Field(default_factory=dict)

    @property
    def place(self) -> Path | str | None:
        """The directory or the bucket. None: there is no archive."""
        return self.directory or self.bucket
