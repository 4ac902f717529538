"""The oldest servers that README names: a worker is killed in the middle, and nothing is lost or out of order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.adapters.postgres.migrations import upgrade
from tests import oldest
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.produce import commit_one
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(bool(oldest.missing()), reason=f"not installed: {oldest.missing()}")
EVENTS = 20


class OldestFleet(Fleet):
    """A fleet on PostgreSQL 15 and Redis 7."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.postgres = oldest.OldestPostgres(self.directory / "postgres")
        self.valkey = oldest.OldestRedis(self.directory / "valkey")

    def initialise(self) -> None:
        """The cluster that others copy is of another version."""

    def create_database(self, name: str) -> str:
        upgrade(url := self.postgres.create_database(name))
        return url


@pytest.fixture
def fleet(server_directory: Path, handler: HandlerService) -> Iterator[OldestFleet]:
    with OldestFleet(server_directory, handler.url, more='order = "key"') as fleet:
        yield fleet


def test_events_arrive_once_and_in_order_on_the_oldest_servers(
    fleet: OldestFleet, handler: HandlerService
) -> None:
    [(version,)] = fleet.query("sea", "SHOW server_version")
    assert version.startswith("15.")
    ids = [commit_one(fleet.urls["vibespro"], number=number) for number in range(EVENTS)]
    fleet.scheduler()
    worker = fleet.worker()
    wait_for("some events are handled", lambda: len(handler.calls) >= EVENTS // 4)
    fleet.kill(worker)
    fleet.worker()
    processed = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL"
    wait_for("all events are handled", lambda: fleet.query("sea", processed) == [(EVENTS,)])
    first = dict.fromkeys(call.body["message_id"] for call in handler.calls)
    assert list(first) == [str(id) for id in ids]
    findings = json.loads(fleet.relay("health", "--json"))
    assert "DATABASE_OLD" not in json.dumps(findings)
