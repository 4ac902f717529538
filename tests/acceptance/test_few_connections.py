"""A fleet on a server with few connections takes its share, and gives way to the user's own service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from relay import Event, Outbox
from tests.acceptance import python_effects
from tests.acceptance.fleet import Fleet
from tests.waiting import wait_for

ROOM = 37  # of 40; three are for superusers
SHARE = ROOM // 3
WANTED = 33
OURS = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, 'jetrelay-')"


@pytest.fixture
def fleet(start_fleet: Callable[..., Fleet]) -> Fleet:
    handler = "python:tests.acceptance.python_effects"
    fleet = start_fleet(handler=handler, max_ack_pending=1_000, postgres_settings={"max_connections": "40"})
    fleet.query("sea", python_effects.TABLE)
    return fleet


def commit(fleet: Fleet, count: int) -> None:
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        Outbox("vibespro").add_many(
            connection,
            [
                Event(
                    event_type="vibe_created",
                    event_version=1 + n % 2,
                    aggregate_type="vibe",
                    aggregate_id=f"v{n}",
                    payload={"n": n},
                )
                for n in range(count)
            ],
        )


def effects(fleet: Fleet) -> int:
    return int(fleet.query("sea", "SELECT count(*) FROM effects")[0][0])


@contextmanager
def watched(url: str) -> Iterator[list[int]]:
    """Note the most sessions that the fleet has at once."""
    most, over = [0], threading.Event()

    def watch() -> None:
        with psycopg.connect(url, autocommit=True, application_name="watch") as connection:
            while not over.wait(0.02):
                most[0] = max(most[0], connection.execute(OURS).fetchall()[0][0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield most
    over.set()
    watcher.join()


def test_the_fleet_gives_way_and_no_attempt_is_spent(fleet: Fleet) -> None:
    fleet.scheduler()
    fleet.worker(processes=2)
    commit(fleet, 2)
    wait_for("the fleet works", lambda: effects(fleet) == 2)
    wait_for("all know of each other", lambda: fleet.log("worker").count(" 3 processes") == 2)
    with watched(fleet.urls["sea"]) as most:
        commit(fleet, 100)
        wait_for("all is handled", lambda: effects(fleet) == 102)
    assert most[0] <= SHARE
    assert f" of {ROOM} sessions, its share is {SHARE}" in fleet.relay("health", "--json")
    url = psycopg.conninfo.make_conninfo(fleet.urls["vibespro"])
    with ExitStack() as service, psycopg.connect(fleet.urls["sea"], autocommit=True) as looking:

        def connects() -> bool:
            try:
                service.enter_context(psycopg.connect(url))
            except psycopg.OperationalError:
                return False
            return True

        commit(fleet, 100)
        for _ in range(WANTED):
            wait_for("the service gets a connection", connects)
        assert looking.execute(OURS).fetchall()[0][0] <= ROOM + 3 - WANTED
    wait_for("all is handled", lambda: effects(fleet) == 202)
    [(attempts, dead)] = fleet.query(
        "sea", "SELECT max(attempts), count(*) FILTER (WHERE dead_lettered_at IS NOT NULL) FROM inbox_messages"
    )
    assert (attempts, dead) == (1, 0)
