"""What tests of the archive share: rows that have had their time, an archive for them, and a look into both."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from relay.adapters.coldstore import FolderStore
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.adapters.postgres.archive import PostgresArchive
from relay.commands.archive import ArchiveRows, BatchLimits, FileCheck
from relay.domain.facts import Fact
from relay.domain.operators import Operator
from tests.integration.publishing import Relay, event, query

AFTER = timedelta(days=90)
DAY = 86_400
ANN = Operator("ann")
TABLES = {
    "outbox": ("outbox_events", "id"),
    "inbox": ("inbox_messages", "message_id"),
    "tasks": ("task_outbox", "id"),
}
_MESSAGE = """
    INSERT INTO inbox_messages (message_id, subject, stream, stream_seq, subscription, body, event_type,
                                received_at, processed_at, attempts)
    SELECT gen_random_uuid(), 's', %s, n, 'from_up', convert_to('{"é": "\\\\"}', 'UTF8'), 'e',
           now() - interval '200 days', now() - interval '100 days' + n * interval '1 second', 1
    FROM generate_series(1, %s) AS n RETURNING message_id AS id
"""
_TASK = """
    INSERT INTO task_outbox (id, type, payload, status, created_at, finished_at)
    SELECT gen_random_uuid(), 't', '{"n": 1}', %s, now() - interval '200 days',
           now() - interval '100 days' + n * interval '1 second'
    FROM generate_series(1, %s) AS n RETURNING id
"""


@dataclass
class Archive:
    """The archive of a relay's context. Use `archived`."""

    relay: Relay
    root: Path
    facts: list[Fact] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.relay.url

    @property
    def tables(self) -> PostgresArchive:
        return PostgresArchive(self.relay.pool.connection, self.relay.context)

    def command(
        self,
        store: Any = None,
        tables: Any = None,
        after: timedelta = AFTER,
        keep: timedelta | None = None,
        **limits: int,
    ) -> ArchiveRows:
        return ArchiveRows(
            self.relay.context,
            after,
            tables or self.tables,
            store or FolderStore(self.root),
            NatsStreamAuditor(self.relay.nats),
            self.facts.append,
            keep=keep,
            limits=BatchLimits(**limits),
        )

    # --- rows that have had their time ---

    async def events(self, count: int, days: int = 100) -> list[UUID]:
        """Publish events, so many days ago by the table, a second apart."""
        ids = [self.relay.add(event(f"v{number}"))[0] for number in range(count)]
        await self.relay.drained()
        age = f"now() - interval '{days} days' + seq * interval '1 second'"
        query(self.url, f"UPDATE outbox_events SET published_at = {age} WHERE id = ANY (%s)", ids)
        return ids

    def messages(self, count: int) -> list[UUID]:
        return _ids(query(self.url, _MESSAGE, self.relay.stream, count))

    def tasks(self, count: int, status: str = "completed") -> list[UUID]:
        return _ids(query(self.url, _TASK, status, count))

    # --- looking ---

    def in_table(self, kind: str = "outbox") -> list[UUID]:
        table, key = TABLES[kind]
        return _ids(query(self.url, f"SELECT {key} AS id FROM {table} ORDER BY 1"))

    def manifests(self, kind: str = "outbox") -> list[dict[str, Any]]:
        folder = self.root / self.relay.context / kind
        return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]

    def lines(self, kind: str = "outbox") -> list[str]:
        """The rows of the archive: those in files that a manifest names."""
        found: list[str] = []
        for manifest in self.manifests(kind):
            path = self.root / self.relay.context / kind / manifest["file"]
            with gzip.open(path, "rt", newline="\n") as file:
                found += file.read().split("\n")[:-1]
        return found

    def in_archive(self, kind: str = "outbox") -> list[UUID]:
        return [UUID(json.loads(line)[TABLES[kind][1]]) for line in self.lines(kind)]

    async def verified(self) -> Sequence[FileCheck]:
        return [found async for found in self.command().verify()]

    def audit(self) -> list[dict[str, Any]]:
        return query(self.url, "SELECT actor, action, ids FROM audit_log ORDER BY id")


@asynccontextmanager
async def archived(url: str, nats_url: str, root: Path) -> AsyncIterator[Archive]:
    """A context whose stream keeps messages for a week, and a folder for its archive."""
    await asyncio.to_thread(root.mkdir)
    async with Relay(url, nats_url) as relay:
        await relay.create_stream(max_age=7 * DAY)
        yield Archive(relay, root)


def _ids(rows: Sequence[dict[str, Any]]) -> list[UUID]:
    return [row["id"] for row in rows]
