"""The archive as values: what may be archived, the name and description of a batch, and errors.

A batch is a file of rows that have left their table, and a manifest that describes the file. Only files that a
manifest names belong to the archive.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from relay.domain.errors import Outage, RelayError
from relay.domain.moments import UNREADABLE, moment
from relay.domain.topology import covers

FORMAT: Final = "jetrelay-archive/1"
#: The subject of an archived row; None if it has none.
SubjectOf: TypeAlias = Callable[[Mapping[str, Any]], str | None]


class ArchiveKind(StrEnum):
    """The tables whose rows are archived."""

    OUTBOX = "outbox"
    INBOX = "inbox"
    TASKS = "tasks"

    @property
    def key(self) -> str:
        """The column that identifies a row."""
        return "message_id" if self is ArchiveKind.INBOX else "id"

    @property
    def type(self) -> str:
        """The column that says what a row is about."""
        return "type" if self is ArchiveKind.TASKS else "event_type"

    @property
    def group(self) -> str:
        """The column of a row's key."""
        return "concurrency_key" if self is ArchiveKind.TASKS else "partition_key"

    def ended(self, row: Mapping[str, Any]) -> datetime:
        """When a row of the archive ended."""
        names = {"outbox": ("published_at",), "inbox": ("processed_at", "dead_lettered_at")}
        found = [row[name] for name in names.get(self.value, ("finished_at",)) if row[name] is not None]
        return moment(found[0])


class ArchivedRow(NamedTuple):
    """A row to archive: its id, the time when it ended, and all its columns as a JSON object."""

    id: UUID
    at: datetime
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Selects archived rows. A field that is None excludes nothing, and no ids exclude nothing.

    ``key``: the partition key of an event or message, the concurrency key of a task. ``subject``: a pattern, as a
    subscription has it. ``correlation``: a correlation id. ``since`` (included) and ``until`` (excluded) limit the
    time when a row ended, as the manifests have it. ``newest``: the number of the last batch that is looked at.
    """

    ids: frozenset[UUID] = frozenset()
    subject: str | None = None
    type: str | None = None
    key: str | None = None
    correlation: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    newest: int | None = None

    def may_be_in(self, batch: Manifest) -> bool:
        """Whether a batch can have such rows, by its number and its times."""
        early = self.until is not None and batch.first_at >= self.until
        late = self.newest is not None and batch.number > self.newest
        return not (early or late) and (self.since is None or batch.last_at >= self.since)

    def fits(self, kind: ArchiveKind, row: Mapping[str, Any], subject: SubjectOf) -> bool:
        """Whether a row of the archive is selected."""
        return (
            (not self.ids or UUID(row[kind.key]) in self.ids)
            and self.type in (None, row[kind.type])
            and self.key in (None, row[kind.group])
            and (self.correlation is None or row["correlation_id"] == str(self.correlation))
            and ((self.since is None and self.until is None) or self._in_time(kind.ended(row)))
            and (self.subject is None or covers(self.subject, subject(row) or ""))
        )

    def _in_time(self, at: datetime) -> bool:
        if at is UNREADABLE:  # it is shown, and no act upon older rows takes it
            return self.until is None
        return (self.since is None or at >= self.since) and (self.until is None or at < self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a batch holds. ``size``, in bytes, and ``sha256`` describe the compressed file.

    The times are when the rows ended: published, processed or dead-lettered, finished.
    """

    context: str
    kind: ArchiveKind
    number: int
    rows: int
    size: int
    sha256: str
    first_id: UUID
    first_at: datetime
    last_id: UUID
    last_at: datetime

    @property
    def file(self) -> str:
        """The name of the file. It includes the content's hash, so different contents never share a name."""
        return f"{self.folder}{self.number:08d}-{self.sha256[:16]}.jsonl.gz"

    @property
    def name(self) -> str:
        """The name of the manifest itself."""
        return f"{self.folder}{self.number:08d}.json"

    @property
    def folder(self) -> str:
        """Where the batches of this kind are."""
        return folder(self.context, self.kind)

    def text(self) -> bytes:
        """Return the manifest as it is stored. It is always the same for the same batch."""
        fields = {"format": FORMAT, "file": self.file.rpartition("/")[2], **asdict(self)}
        return json.dumps(fields, indent=2, default=_plain).encode() + b"\n"


def folder(context: str, kind: ArchiveKind) -> str:
    """Where the batches of a context and kind are: the common start of their names."""
    return f"{context}/{kind}/"


def _plain(value: object) -> str:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)


# --- errors ---------------------------------------------------------------------------------------


class ArchiveError(RelayError):
    """Base of the errors that prevent archiving. The rows stay where they are."""

    code = "ARCHIVE_ERROR"


class ArchiveOff(ArchiveError):
    """The context has no archive."""

    code = "ARCHIVE_OFF"


class ArchiveBusy(ArchiveError):
    """Another process archives this context now."""

    code = "ARCHIVE_BUSY"


class ArchiveDamaged(ArchiveError):
    """A file is missing, or its content is not what was written."""

    code = "ARCHIVE_DAMAGED"


class ArchiveConflict(ArchiveError):
    """Something else uses a name of the archive: another database writes to the same place."""

    code = "ARCHIVE_CONFLICT"


class StoreUnreachable(Outage):
    """The place of the archive cannot be read or written."""

    code = "STORE_UNREACHABLE"
    server = "archive"
