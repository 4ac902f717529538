"""A deployment with the roles and users of deploy/ does all its work, and no server refuses it anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
import redis

from relay.adapters.jetstream import topology
from relay.adapters.jetstream.connection import connect_once
from relay.settings import load_settings
from tasks import schedule
from tests.acceptance import task_effects
from tests.acceptance.fleet import CONFIG, Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.produce import commit_one
from tests.integration import deployed
from tests.waiting import wait_for

SEA, VIBESPRO = ("--context", "sea"), ("--context", "vibespro")


class Deployed(Fleet):
    """Its processes are the users of deploy/; a test looks as somebody who may do anything."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.nats = deployed.LockedNats(self.directory / "nats")
        self.valkey = deployed.LockedValkey(self.directory / "valkey")

    def __enter__(self) -> Deployed:
        try:
            self.initialise()
            for server in (self.postgres, self.nats, self.valkey):
                server.launch()
            for server in (self.postgres, self.nats, self.valkey):
                server.wait()
            deployed.make_roles(self.postgres)
            deployed.migrate(self.postgres)
            self.urls = {name: self.postgres.url_of(name) for name in deployed.CONTEXTS}
            fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "directory"}
            (self.directory / "relay.toml").write_text(CONFIG.format(**fields))
            asyncio.run(self._make_streams())
        except BaseException:
            self.__exit__()
            raise
        return self

    async def _make_streams(self) -> None:
        settings = load_settings(self.directory / "relay.toml", self.environment)
        async with connect_once(
            self.nats.url_of("relay_admin"), inbox_prefix=self.nats.inbox_of("relay_admin")
        ) as js:
            await topology.ensure(js, settings.streams(), settings.consumers())

    @property
    def environment(self) -> dict[str, str]:
        databases = {
            f"RELAY_CONTEXTS__{name.upper()}__DATABASE_URL": deployed.url_of(self.postgres, "relay", name)
            for name in deployed.CONTEXTS
        }
        archive = {
            "RELAY_CONTEXTS__VIBESPRO__ARCHIVE__AFTER": "30d",
            "RELAY_CONTEXTS__VIBESPRO__ARCHIVE__DIRECTORY": str(self.directory),
        }
        inbox = {"RELAY_NATS__INBOX_PREFIX": self.nats.inbox_of("relay")}
        return {**super().environment, **databases, **archive, "RELAY_ACTOR_MODULES": MODULES, **inbox}

    def application(self, context: str) -> str:
        """The address of a context's database for a service."""
        return deployed.url_of(self.postgres, "application", context)

    def answer(self, *arguments: str) -> Any:
        """What a command prints as JSON."""
        return json.loads(self.relay(*arguments, "--json"))

    def refusals(self) -> list[str]:
        """Everything that any of the servers has refused anybody."""
        signs = {"postgres": ("permission denied", "must be owner"), "nats": ("Violation",)}
        refused = [
            line
            for server in (self.postgres, self.nats)
            for line in server.log_path.read_text().splitlines()
            if any(sign in line for sign in signs[server.name])
        ]
        with redis.Redis.from_url(self.valkey.root_url) as client:
            return refused + [str(entry) for entry in client.acl_log()]


MODULES = "tasks.actors,consumer.actors,tests.acceptance.task_effects"


@pytest.fixture
def fleet(server_directory: Path, handler: HandlerService) -> Iterator[Deployed]:
    handler.verdict = lambda body, _n: int(body["payload"].get("verdict", 200))
    with Deployed(server_directory, handler=handler.url) as fleet:
        fleet.query("sea", task_effects.TABLE)
        fleet.query("sea", "GRANT INSERT ON task_effects TO relay")  # what tasks write is not ours to grant
        yield fleet


def processed(fleet: Deployed, *ids: UUID) -> None:
    sql = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL AND message_id = ANY (%s)"
    wait_for("messages are processed", lambda: fleet.query("sea", sql, list(ids)) == [(len(ids),)])


def incident(fleet: Deployed, message_id: UUID) -> str:
    """The number of the open incident of a message, once there is one."""

    def find() -> str | None:
        found = fleet.answer("dlq", "list", *SEA)
        return next((str(one["id"]) for one in found if one["message_id"] == str(message_id)), None)

    return str(wait_for("the incident appears", find))


@pytest.mark.timeout(900)  # some hundred commands, on a machine that may have other things to do
def test_everything_works_with_the_least_of_rights(fleet: Deployed, handler: HandlerService) -> None:
    fleet.scheduler()
    worker = fleet.worker()
    _events_and_dead_letters(fleet, handler)
    _tasks(fleet)
    fleet.kill(worker)
    fleet.worker()
    _a_loss(fleet)
    _the_archive(fleet)
    _looking(fleet)
    assert fleet.refusals() == []
    for process in ("worker", "scheduler"):
        assert "ERROR" not in fleet.log(process)


def _events_and_dead_letters(fleet: Deployed, handler: HandlerService) -> None:
    good = [commit_one(fleet.application("vibespro"), f"k{n}") for n in range(20)]
    bad = [commit_one(fleet.application("vibespro"), f"bad{n}", verdict=422) for n in range(3)]
    processed(fleet, *good)
    numbers = [incident(fleet, message_id) for message_id in bad]
    fleet.relay("dlq", "show", *SEA, numbers[0])
    handler.verdict = lambda _body, _n: 200
    fleet.relay("dlq", "requeue", *SEA, numbers[0])
    fleet.relay("dlq", "discard", *SEA, numbers[1], "--note", "not needed")
    fleet.relay("dlq", "resolve", *SEA, numbers[2], "--note", "done by hand")
    processed(fleet, bad[0])
    assert fleet.answer("dlq", "list", *SEA) == []


def _tasks(fleet: Deployed) -> None:
    with psycopg.connect(fleet.application("sea")) as connection:
        done = schedule(connection, "plain", task_effects.Job(n=1), registered=False)
        broken = schedule(connection, "broken", task_effects.Job(), registered=False)
    status = "SELECT status FROM task_outbox WHERE id = %s"
    wait_for("the task is done", lambda: fleet.query("sea", status, done) == [("completed",)])
    wait_for("the other has failed", lambda: fleet.query("sea", status, broken) == [("failed",)])
    assert fleet.answer("tasks", "list", *SEA)
    fleet.relay("tasks", "show", *SEA, str(broken))
    fleet.relay("tasks", "retry", *SEA, str(broken))
    wait_for("it fails again", lambda: fleet.query("sea", status, broken) == [("failed",)])


def _a_loss(fleet: Deployed) -> None:
    """A stream loses a message; the next one is of a worker that followed one that was killed."""
    after = commit_one(fleet.application("vibespro"), "after")
    processed(fleet, after)
    [(seq,)] = fleet.query("vibespro", "SELECT published_seq FROM outbox_events WHERE id = %s", after)

    asyncio.run(_delete(fleet.nats.root_url, "VIBESPRO_EVENTS", seq))
    fleet.relay("reconcile", "--repair")
    sql = "SELECT published_seq > %s FROM outbox_events WHERE id = %s"
    wait_for("it is published again", lambda: fleet.query("vibespro", sql, seq, after) == [(True,)])
    fleet.relay("outbox", "show", *VIBESPRO, str(after))
    fleet.relay("outbox", "replay", *VIBESPRO, str(after))


async def _delete(url: str, stream: str, seq: int) -> None:
    async with connect_once(url) as js:
        await js.delete_msg(stream, seq)


def _the_archive(fleet: Deployed) -> None:
    wait_for("all is published", lambda: not fleet.answer("backlog")[0]["outbox"]["count"])
    fleet.query("vibespro", "UPDATE outbox_events SET published_at = published_at - interval '40 days'")
    fleet.relay("archive", "run", *VIBESPRO)
    assert fleet.query("vibespro", "SELECT count(*) FROM outbox_events") == [(0,)]
    assert fleet.answer("archive", "list", *VIBESPRO)
    fleet.relay("archive", "verify", *VIBESPRO)


def _looking(fleet: Deployed) -> None:
    for command in (
        "health",
        "backlog",
        "db status",
        "streams diff",
        "streams show",
        "outbox list",
        "parked list",
        "schedule list",
        "dlq list",
    ):
        fleet.relay(*command.split())
