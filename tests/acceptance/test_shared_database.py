"""Producer and consumer in one database, each in a schema of its own, with real processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from relay import Event, Outbox
from relay.adapters.postgres.revisions import newest
from relay.devstack.configuration import variable
from relay.settings.urls import with_search_path
from tasks import schedule
from tests.acceptance import python_effects, task_effects
from tests.acceptance.fleet import Fleet
from tests.acceptance.task_effects import Job, plain
from tests.waiting import wait_for

MODULES = "tasks.actors,consumer.actors,tests.acceptance.task_effects"


class SharedFleet(Fleet):
    """The contexts of `Fleet` in one database. ``shared`` is its address without a search_path."""

    shared = ""

    def create_database(self, name: str) -> str:
        return self.postgres.create_database(name)

    def migrate(self) -> None:
        self.shared = self.urls["sea"]
        self.urls = {name: with_search_path(self.shared, name) for name in self.contexts}
        assert self.relay("db", "upgrade").count(newest()) == 2

    @property
    def environment(self) -> dict[str, str]:
        found = super().environment
        for name in self.contexts if self.shared else ():
            found |= {variable(name, "DATABASE_URL"): self.shared, variable(name, "SCHEMA"): name}
        return found


@pytest.fixture
def fleet(server_directory: Path) -> Iterator[SharedFleet]:
    handler = "python:tests.acceptance.python_effects"
    with SharedFleet(server_directory, handler=handler, variables={"RELAY_ACTOR_MODULES": MODULES}) as fleet:
        with psycopg.connect(fleet.shared) as connection:
            connection.execute(python_effects.TABLE)
            connection.execute(task_effects.TABLE)
        yield fleet


def commit(fleet: SharedFleet, number: int) -> list[str]:
    """Commit events of the producer and tasks of both, in one transaction each."""
    ids = []
    for n in range(number):
        event = Event(event_type="vibe_created", aggregate_type="vibe", aggregate_id=f"v{n % 9}", payload={"n": n})
        with psycopg.connect(fleet.shared) as connection:
            ids.append(str(Outbox("vibespro", schema="vibespro").add(connection, event)))
            for name in fleet.contexts:
                schedule(connection, plain, Job(n=n), schema=name)
    return ids


def test_everything_arrives_once_though_a_worker_is_killed(fleet: SharedFleet) -> None:
    fleet.scheduler()
    workers = [fleet.worker(), fleet.worker()]
    ids = commit(fleet, 100)

    def effects() -> Counter[str]:
        with psycopg.connect(fleet.shared) as connection:
            return Counter(str(id) for (id,) in connection.execute("SELECT message_id FROM effects"))

    wait_for("some are handled", lambda: len(effects()) > 20)
    fleet.kill(workers[0])
    wait_for("all are handled", lambda: len(effects()) == len(ids))
    assert effects() == Counter(dict.fromkeys(ids, 1))
    done = "SELECT count(*) FROM task_outbox WHERE status = 'completed'"
    for name in fleet.contexts:
        wait_for(f"the tasks of {name} are done", lambda name=name: fleet.query(name, done) == [(len(ids),)])
    with psycopg.connect(fleet.shared) as connection:
        assert connection.execute("SELECT count(*), count(DISTINCT task_id) FROM task_effects").fetchone() == (
            2 * len(ids),
            2 * len(ids),
        )
    unpublished = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL"
    for name in fleet.contexts:
        wait_for(f"{name} has published", lambda name=name: fleet.query(name, unpublished) == [(0,)])
    # What followed is the consumer's; the producer received nothing.
    assert fleet.query("sea", "SELECT count(*) FROM outbox_events") == [(len(ids),)]
    assert fleet.query("vibespro", "SELECT count(*) FROM inbox_messages") == [(0,)]
    assert len(fleet.messages("SEA_EVENTS")) == len(ids)
