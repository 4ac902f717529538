"""From a backup, or a lost cluster, to balance: `relay context restore`, with processes that run and handlers."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.acceptance import python_effects
from tests.acceptance.fleet import Fleet
from tests.acceptance.produce import commit_one
from tests.waiting import wait_for

RESTORE = ("context", "restore", "--yes", "--note", "the disk was lost")
CHECK = ("context", "check")


@pytest.fixture
def fleet(server_directory: Path) -> Iterator[Fleet]:
    variables = {"RELAY_ACTOR_MODULES": "consumer.actors"}
    handler = "python:tests.acceptance.python_effects"
    with Fleet(server_directory, handler=handler, variables=variables) as fleet:
        fleet.query("sea", python_effects.TABLE)
        yield fleet


class Operator:
    """Starts and stops the processes, and puts databases back."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.processes = fleet, list[subprocess.Popen[bytes]]()

    def start(self) -> None:
        self.processes = [self.fleet.scheduler(), self.fleet.worker()]

    def stop(self) -> None:
        while self.processes:
            self.fleet.kill(self.processes.pop())

    def copy(self, *names: str) -> None:
        """Back up databases. Nobody is connected."""
        for name in names:
            self.fleet.postgres.create_database(f"{name}_backup", name)

    def put_back(self, *names: str) -> None:
        for name in names:
            self.fleet.postgres.drop_database(name)
            self.fleet.postgres.create_database(name, f"{name}_backup")

    def commit(self, number: int) -> list[UUID]:
        return [commit_one(self.fleet.urls["vibespro"], f"v{n % 3}", n=n) for n in range(number)]

    def effects(self) -> Counter[UUID]:
        return Counter(id for (id,) in self.fleet.query("sea", "SELECT message_id FROM effects"))

    def handled(self, *ids: UUID) -> None:
        """Each message has had its effect, once, and JetStream knows."""
        wait_for("all are handled", lambda: set(ids) <= set(self.effects()))
        assert set(self.effects().values()) == {1}
        wait_for("all are acknowledged", lambda: self.fleet.ack_pending() == 0)
        undone = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL"
        wait_for("all is published", lambda: self.fleet.query("sea", undone) == [(0,)])

    def asks(self, *command: str, status: int = 0) -> Any:
        found, answer = self.run(*command, "--json")
        assert found == status, answer
        return json.loads(answer)

    def run(self, *command: str) -> tuple[int, str]:
        try:
            return 0, self.fleet.relay(*command)
        except AssertionError as error:  # with what it printed
            return 1, str(error).partition("\nassert")[0]

    def wrong(self) -> dict[str, int]:
        found = Counter[str]()
        for part in self.asks(*CHECK, status=1)["parts"]:
            found.update(part["wrong"])
        return dict(found)

    def balanced(self) -> None:
        found = self.asks(*CHECK)
        assert (found["balanced"], [it["wrong"] for it in found["parts"]]) == (True, [{}] * 5)


@pytest.fixture
def operator(fleet: Fleet) -> Operator:
    return Operator(fleet)


def test_a_producer_adopts_what_it_published_after_its_backup(operator: Operator) -> None:
    operator.start()
    early = operator.commit(4)
    operator.handled(*early)
    operator.stop()
    operator.copy("vibespro")
    operator.start()
    late = operator.commit(3)
    operator.handled(*early, *late)
    operator.stop()
    operator.put_back("vibespro")
    assert operator.wrong() == {"in the stream, and unknown to the outbox": 3}

    dry = operator.asks(*RESTORE, "--unknown", "adopt", "--dry-run")
    assert [(it["context"], it["step"], it["count"]) for it in dry["steps"]] == [("vibespro", "adopt", 3)]
    undecided = operator.asks(*RESTORE, status=1)
    assert [it["undone"] for it in undecided["steps"]] == [True]
    assert operator.asks(*RESTORE, "--unknown", "adopt")["balanced"]
    operator.start()
    last = operator.commit(2)
    operator.handled(*early, *late, *last)
    operator.stop()
    operator.balanced()
    audited = "SELECT action, note FROM audit_log ORDER BY id"
    assert operator.fleet.query("vibespro", audited) == [
        ("outbox.adopt", "the disk was lost"),
        ("context.restore", "the disk was lost"),
    ]
    assert operator.asks(*RESTORE)["steps"] == []


def test_a_consumer_reads_again_what_its_inbox_lost_and_nothing_else(operator: Operator) -> None:
    operator.start()
    early = operator.commit(4)
    operator.handled(*early)
    operator.stop()
    operator.copy("sea")
    operator.start()
    late = operator.commit(5)
    operator.handled(*early, *late)
    operator.stop()
    operator.put_back("sea")
    assert operator.effects() == Counter(early)
    assert operator.wrong()["acknowledged, and not in the inbox"] == 5

    # Its own events of that time, which nobody else knows of, stay as they are.
    found = operator.asks(*RESTORE, "--unknown", "report", status=1)
    again = [(it["context"], it["count"]) for it in found["steps"] if it["step"] == "read again"]
    assert again == [("sea", 5)]
    operator.start()
    operator.fleet.relay(*RESTORE, "--context", "sea", "--wait")
    operator.handled(*early, *late)
    operator.stop()
    operator.balanced()


def test_both_go_back_to_one_moment(operator: Operator) -> None:
    operator.start()
    early = operator.commit(4)
    operator.handled(*early)
    operator.stop()
    waiting = operator.commit(2)
    operator.copy("vibespro", "sea")
    operator.start()
    late = operator.commit(3)
    operator.handled(*early, *waiting, *late)
    operator.stop()
    operator.put_back("vibespro", "sea")

    assert not operator.asks(*RESTORE, "--unknown", "remove", status=1)["balanced"]  # until workers have read
    operator.start()
    operator.handled(*early, *waiting)
    operator.fleet.relay(*RESTORE, "--wait")
    after = operator.commit(2)
    operator.handled(*early, *waiting, *after)
    operator.stop()
    assert operator.effects() == Counter([*early, *waiting, *after])
    kept = {message.headers["Nats-Msg-Id"] for message in operator.fleet.messages("VIBESPRO_EVENTS")}
    assert kept.isdisjoint(map(str, late))
    operator.balanced()


def test_a_cluster_that_lost_its_streams_gets_everything_again(operator: Operator) -> None:
    fleet = operator.fleet
    operator.start()
    handled = operator.commit(4)
    operator.handled(*handled)
    operator.stop()
    unpublished = operator.commit(2)
    fleet.nats.stop()
    shutil.rmtree(fleet.nats.directory / "jetstream")
    fleet.nats.start()
    assert operator.wrong() == {"the stream is missing": 2, "the consumer is missing": 1}

    done = operator.asks(*RESTORE)
    again = {it["context"]: it["count"] for it in done["steps"] if it["step"] == "publish again"}
    assert again == {"vibespro": 4, "sea": 4}
    operator.start()
    operator.handled(*handled, *unpublished)
    wait_for("all are in the stream", lambda: len(fleet.messages("VIBESPRO_EVENTS")) == 6)
    wait_for("the consumer knows them", lambda: fleet.ack_pending() == 0)
    operator.stop()
    operator.balanced()
    assert operator.effects() == Counter([*handled, *unpublished])
    with psycopg.connect(fleet.urls["sea"]) as connection:
        assert connection.execute("SELECT count(*) FROM dead_letters").fetchone() == (0,)
