"""Replays of many archived events, while others wait, and at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from relay.adapters.coldstore import FolderStore
from relay.adapters.postgres.sql import statement
from relay.commands.coldrows import ColdRows
from relay.devstack import NatsServer
from relay.domain.archive import RowFilter
from tests.integration.archiving import ANN, Archive, archived
from tests.integration.publishing import query

pytestmark = pytest.mark.anyio
_WAITING = """
    INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, partition_key)
    SELECT gen_random_uuid(), 'thing', n::text, 'made', '{}', 'k' FROM generate_series(1, 5000) AS n
"""


@pytest.fixture
async def archive(database_url: str, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Archive]:
    async with archived(database_url, nats_server.url, tmp_path / "cold") as archive:
        yield archive


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("archive/replayable", {"lines": ['{"id": "018f0000-0000-7000-8000-000000000000"}'] * 100}),
        ("outbox/replay", {"ids": [UUID(int=number) for number in range(100)]}),
    ],
)
def test_events_are_looked_up_by_their_ids_where_most_events_wait(
    database_url: str, name: str, wanted: dict[str, list[object]]
) -> None:
    """Not by publication: in a replay of a million nearly all of them wait soon, and a batch took minutes."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(_WAITING)
        conn.execute("VACUUM ANALYZE outbox_events")
        plan = str(conn.execute(f"EXPLAIN {statement(name)}".encode(), wanted).fetchall())
    assert "outbox_events" in plan
    assert "idx_outbox_published" not in plan, plan


async def test_of_two_replays_at_once_each_event_is_published_once_more_by_one(archive: Archive) -> None:
    await archive.events(6)
    await archive.command(rows=2).run(ANN)
    async with asyncio.TaskGroup() as group:
        both = [group.create_task(_replay(archive)) for _ in range(2)]
    assert sum(task.result() for task in both) == 6
    rows = query(archive.url, "SELECT generation, published_at IS NULL AS waits FROM outbox_events")
    assert rows == [{"generation": 1, "waits": True}] * 6


async def _replay(archive: Archive) -> int:
    rows = ColdRows(archive.tables, FolderStore(archive.root), lambda _row: None)
    return await rows.replay(RowFilter(), ANN, lambda _done, _of: None)
