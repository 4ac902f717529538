"""A fleet behind PgBouncer in transaction mode: order and effects are as they are without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from relay import Event, Outbox
from relay.devstack.configuration import variable
from tasks import schedule
from tests.acceptance import ordered_effects, task_effects
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.task_effects import Job, plain
from tests.acceptance.test_ordered import HANDLER, ORDERED, commit, count, effects
from tests.pooler import MISSING, PROGRAM, Pooler, pooled
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=MISSING)

MODULES = "tasks.actors,consumer.actors,tests.acceptance.task_effects"
TASKS = 30
#: The sessions that the pooler has to each database.
SESSIONS = 4
SERVICE = """
[contexts.vibespro.subscriptions.from_sea]
stream = "SEA_EVENTS"
durable = "vibespro__from_sea"
filter_subject = "sea.event.>"
handler = "{url}"
"""


class PooledFleet(Fleet):
    """The processes of `Fleet` behind a pooler, but for what needs a session."""

    pooler: Pooler | None = None

    @property
    def environment(self) -> dict[str, str]:
        found = super().environment
        for name in self.contexts if self.pooler else ():
            found[variable(name, "POOLER_URL")] = self.pooler.url(self.urls[name])  # type: ignore[union-attr]
        return found


@pytest.fixture
def fleet(server_directory: Path, handler: HandlerService) -> Iterator[PooledFleet]:
    more = ORDERED + SERVICE.format(url=handler.url)
    with PooledFleet(
        server_directory, handler=HANDLER, more=more, variables={"RELAY_ACTOR_MODULES": MODULES}
    ) as fleet:
        for table in (*ordered_effects.TABLES, task_effects.TABLE):
            fleet.query("sea", table)
        with pooled(server_directory / "pooler", fleet.urls["sea"], size=SESSIONS) as fleet.pooler:
            yield fleet


def test_events_and_tasks_happen_once_and_in_order(fleet: PooledFleet, handler: HandlerService) -> None:
    fleet.scheduler()
    workers = [fleet.worker(), fleet.worker()]
    expected = commit(fleet, 20, 10, flaky=1)
    assert fleet.pooler is not None
    with psycopg.connect(fleet.pooler.url(fleet.urls["sea"]), prepare_threshold=None) as connection:
        for n in range(TASKS):
            schedule(connection, plain, Job(n=n))
            seen = Event(event_type="seen", aggregate_type="sight", aggregate_id=str(n), payload={"n": n})
            Outbox("sea").add(connection, seen)
    wait_for("some effects have happened", lambda: count(fleet) > 40)
    direct = "SELECT count(*) FROM pg_stat_activity WHERE application_name ~ 'jetrelay-(worker|handler|tasks)'"
    assert fleet.query("sea", direct)[0][0] <= 2 * SESSIONS, "all workers share the sessions of the pooler"
    fleet.pooler.kill()
    fleet.pooler.start(fleet.urls["sea"])
    fleet.kill(workers[0])
    wait_for("all effects have happened", lambda: count(fleet) >= 200)
    assert effects(fleet) == expected
    done = "SELECT count(*), count(DISTINCT task_id) FROM task_effects"
    wait_for("all tasks are done", lambda: fleet.query("sea", done) == [(TASKS, TASKS)])
    finished = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL"
    wait_for("the service has all", lambda: fleet.query("vibespro", finished) == [(TASKS,)])
    assert len({call.message_id for call in handler.calls}) == TASKS
    published = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL"
    assert fleet.query("vibespro", published) == [(0,)]
    assert len(fleet.messages("VIBESPRO_EVENTS")) == 200, "what was published twice is stored once"
