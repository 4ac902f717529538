"""`relay health` on real servers: a fault for each line of what it must name, and no alarm without one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, StreamConfig

from relay.adapters.jetstream import topology
from relay.adapters.jetstream.connection import connect_once
from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from relay.domain.findings import Finding, Severity
from relay.ops.queries import Diagnose, queries
from relay.settings import Settings
from relay.settings.archive import ArchiveSettings
from tests.servers import copy_template
from tests.waiting import wait_for

NAMESPACE = "faulty"
LED = "UPDATE scheduler_lease SET holder = gen_random_uuid(), who = 'host:1', expires_at = now() + interval '{}'"
EVENT = (
    "INSERT INTO outbox_events"
    " (id, aggregate_type, aggregate_id, event_type, payload, partition_key, occurred_at{})"
    " SELECT gen_random_uuid(), 'a', '1', 'x', '{{}}', 'k', now() - interval '5 min'{}"
)
MESSAGE = (
    "INSERT INTO inbox_messages (message_id, subject, subscription, received_at, enqueued_at{})"
    " SELECT gen_random_uuid(), 's', '{}', now() - interval '5 min', now() + interval '20 s'{}"
)
LETTERS = (
    "INSERT INTO dead_letters (message_id, subject, class, reason, subscription, recorded_at, snoozed_until)"
    " SELECT gen_random_uuid(), 's', 'poison', 'x', 'own', now() - interval '{}', {} FROM generate_series(1, {})"
)
ALERT = (
    "INSERT INTO alerts (class, subject_type, subject, reason, raised_at)"
    " VALUES ('failed_task', 'task', 'mail', 'x', now() - interval '5 min')"
)


@dataclass
class Servers:
    """The shared servers, as one case sees them."""

    settings: Settings
    database: str
    nats: NatsServer
    valkey: ValkeyServer

    def sql(self, *statements: str) -> None:
        with psycopg.connect(self.database) as conn:
            for statement in statements:
                conn.execute(statement.encode())

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.valkey.url)

    def jetstream(self, use: Callable[[JetStreamContext], Awaitable[Any]]) -> None:
        async def run() -> None:
            async with connect_once(self.nats.url) as js:
                await use(js)

        asyncio.run(run())

    def findings(self, *, close: bool = False) -> list[Finding]:
        return [*asyncio.run(queries(self.settings).ask_async(Diagnose(close=close))).unwrap().findings]

    def errors(self) -> dict[str, Finding]:
        return {it.code: it for it in self.findings() if it.severity is Severity.ERROR}


@pytest.fixture(scope="module")
def servers(
    postgres: PostgresServer, administrator: psycopg.Connection, nats_server: NatsServer, valkey: ValkeyServer
) -> Iterator[Servers]:
    copy_template(administrator, "test_faults")
    url = postgres.url_of("test_faults")
    subscription = {"stream": "FLT_EVENTS", "filter_subject": "flt.event.>", "handler": "python:json"}
    settings = Settings.model_validate(
        {
            "nats_url": nats_server.url,
            "nats": {"monitor": nats_server.monitor_url},
            "redis_url": valkey.url,
            "redis_namespace": NAMESPACE,
            "contexts": {"flt": {"database_url": url, "subscriptions": {"own": subscription}}},
        }
    )
    yield Servers(settings, url, nats_server, valkey)
    administrator.execute("DROP DATABASE IF EXISTS test_faults WITH (FORCE)")


@pytest.fixture(autouse=True)
def well(servers: Servers) -> None:
    """All is as it should be, and a scheduler leads."""
    names = [it.name for it in servers.settings.streams()]

    async def again(js: JetStreamContext) -> None:
        for info in await js.streams_info():
            if info.config.name in names:
                await js.delete_stream(info.config.name or "")
        await topology.ensure(js, servers.settings.streams(), servers.settings.consumers())

    servers.jetstream(again)
    tables = (
        "outbox_events",
        "inbox_messages",
        "task_outbox",
        "dead_letters",
        "scheduled_jobs",
        "parked_keys",
        "alerts",
    )
    servers.sql(*(f"DELETE FROM {table}" for table in tables), LED.format("1 hour"))
    with servers.redis() as client:
        for key in client.scan_iter(f"{NAMESPACE}:*"):
            client.delete(key)
        seconds, _ = client.time()
        client.zadd(f"{NAMESPACE}:__heartbeats__", {"worker": seconds * 1000})


# --- the faults ---


async def seal(js: JetStreamContext) -> None:
    info = await js.stream_info("FLT_EVENTS")
    info.config.sealed = True
    await js.update_stream(info.config)


async def fill(js: JetStreamContext) -> None:
    info = await js.stream_info("FLT_EVENTS")
    info.config.max_msgs = 2
    await js.update_stream(info.config)
    for _ in range(2):
        await js.publish("flt.event.x.v1")


async def take_subjects(js: JetStreamContext) -> None:
    await js.update_stream(StreamConfig(name="FLT_EVENTS", subjects=["flt.other.>"], discard=DiscardPolicy.NEW))


async def pause(js: JetStreamContext) -> None:
    await js._nc.request(  # type: ignore[attr-defined]
        "$JS.API.CONSUMER.PAUSE.FLT_EVENTS.flt__own", b'{"pause_until": "2099-01-01T00:00:00Z"}'
    )


async def fill_window(js: JetStreamContext) -> None:
    """Deliver two messages of a window of two, and leave a third in the stream."""
    config = (await js.consumer_info("FLT_EVENTS", "flt__own")).config
    config.max_ack_pending = 2
    await js.add_consumer("FLT_EVENTS", config)
    for _ in range(3):
        await js.publish("flt.event.x.v1")
    subscription = await js.pull_subscribe_bind("flt__own", "FLT_EVENTS")
    await subscription.fetch(2)


FAILING = MESSAGE.format(
    ", attempts, last_error, next_attempt_at",
    "own",
    ", 3, 'KeyError at shop.total:7 <- shop.py:7 in total', now() + interval '20 s'",
)
#: What is done, the finding (an error) and what its text must name.
FAULTS: dict[str, tuple[Callable[[Servers], Any], str, str]] = {
    "nothing is published, and no scheduler leads": (
        lambda it: it.sql(EVENT.format("", ""), "UPDATE scheduler_lease SET expires_at = NULL"),
        "OUTBOX_STALLED",
        "no scheduler leads",
    ),
    "nothing is published, and no worker runs": (
        lambda it: (it.sql(EVENT.format("", "")), it.redis().delete(f"{NAMESPACE}:__heartbeats__")),
        "OUTBOX_STALLED",
        "no worker took jobs",
    ),
    "nothing is published, for a gate of nobody": (
        lambda it: (it.sql(EVENT.format("", "")), it.redis().set(f"{NAMESPACE}:gate:publish:flt:0", "x")),
        "OUTBOX_STALLED",
        "GATE_STUCK",
    ),
    "nothing is published, for a sealed stream": (
        lambda it: (it.sql(EVENT.format("", "")), it.jetstream(seal)),
        "OUTBOX_STALLED",
        "is sealed",
    ),
    "nothing is published, and no cause is known": (
        lambda it: it.sql(EVENT.format("", "")),
        "OUTBOX_STALLED",
        "no cause is known",
    ),
    "jobs wait and nobody takes them": (
        lambda it: (
            it.sql(EVENT.format("", "")),
            it.redis().rpush(f"{NAMESPACE}:relay-publish", "one"),
            it.redis().hset(f"{NAMESPACE}:relay-publish.msgs", "one", "{}"),
        ),
        "OUTBOX_STALLED",
        "1 jobs wait in relay-publish, and no worker takes them",
    ),
    "events are refused": (
        lambda it: it.sql(
            EVENT.format(
                ", publish_attempts, publish_error, available_at",
                ", 1, 'STREAM_MISSING: no stream', now() + interval '20 s'",
            )
        ),
        "EVENTS_REFUSED",
        "STREAM_MISSING",
    ),
    "a handler fails in every call": (lambda it: it.sql(FAILING), "HANDLER_FAILING", "KeyError at shop.total:7"),
    "messages of a subscription that was renamed": (
        lambda it: it.sql(
            MESSAGE.format("", "former", ""), "UPDATE inbox_messages SET enqueued_at = now() - interval '5 min'"
        ),
        "INBOX_STALLED",
        "relay.toml has no subscription former",
    ),
    "many dead letters": (
        lambda it: it.sql(LETTERS.format("1 min", "NULL", 100)),
        "DEAD_LETTERS_OPEN",
        "100 dead",
    ),
    "an old dead letter": (lambda it: it.sql(LETTERS.format("3 days", "NULL", 1)), "DEAD_LETTERS_OPEN", "for 3 d"),
    "a sealed stream": (lambda it: it.jetstream(seal), "STREAM_REFUSES", "is sealed"),
    "a full stream": (lambda it: it.jetstream(fill), "STREAM_REFUSES", "is full"),
    "a stream without its subjects": (
        lambda it: it.jetstream(take_subjects),
        "SUBJECTS_MISSING",
        "does not take flt.event.>",
    ),
    "a consumer that was paused": (lambda it: it.jetstream(pause), "CONSUMER_PAUSED", "is paused"),
    "a gate without expiry": (
        lambda it: it.redis().set(f"{NAMESPACE}:gate:pull:flt:own", "0123456789abcdef0123456789abcdef:0"),
        "GATE_STUCK",
        "gate:pull:flt:own",
    ),
    "a gate of another type": (
        lambda it: it.redis().hset(f"{NAMESPACE}:gate:pull:flt:own", "a", "b"),
        "QUEUE_KEY_TYPE",
        "gate:pull:flt:own",
    ),
    "a queue of another type": (
        lambda it: it.redis().set(f"{NAMESPACE}:relay-handle", "x"),
        "QUEUE_KEY_TYPE",
        "relay-handle",
    ),
    "heartbeats of another type": (
        lambda it: (
            it.redis().delete(f"{NAMESPACE}:__heartbeats__"),
            it.redis().set(f"{NAMESPACE}:__heartbeats__", "x"),
        ),
        "QUEUE_KEY_TYPE",
        "__heartbeats__",
    ),
    "no webhook takes an alert": (
        lambda it: it.sql(ALERT),
        "ALERTS_STALLED",
        "the webhook refuses them or does not answer",
    ),
    "an alert waits, and no scheduler leads": (
        lambda it: it.sql(ALERT, "UPDATE scheduler_lease SET holder = NULL, expires_at = NULL"),
        "ALERTS_STALLED",
        "no scheduler leads",
    ),
    "a scheduler that died": (lambda it: it.sql(LED.format("-5 min")), "SCHEDULER_SILENT", "host:1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_an_error_that_names_it(servers: Servers, fault: str) -> None:
    inject, code, named = FAULTS[fault]
    inject(servers)
    found = servers.errors()
    assert code in found, found
    assert named in found[code].text


def test_unconfirmed_letters_are_one_finding_whatever_they_claim(servers: Servers) -> None:
    forged = LETTERS.format("1 min", "NULL", 500).replace("'own'", "'own' || random()")
    servers.sql(forged.replace("'poison'", "'unconfirmed'"), LETTERS.format("1 min", "NULL", 1))
    found = {it.subject: it.text for it in servers.findings() if it.code == "DEAD_LETTERS_OPEN"}
    assert found.keys() == {"letters of flt", "subscription flt.own"}
    assert found["letters of flt"].startswith("500 unconfirmed letters")


def test_messages_that_stand_still_are_a_matter_of_their_subscription(servers: Servers) -> None:
    """An alert about them goes to whoever asks for alerts about this subscription."""
    servers.sql(MESSAGE.format("", "own", ""), "UPDATE inbox_messages SET enqueued_at = now() - interval '5 min'")
    assert servers.errors()["INBOX_STALLED"].subject == "subscription flt.own"


@contextmanager
def holding(servers: Servers, *statements: str) -> Iterator[None]:
    """Another program has locks."""
    with psycopg.connect(servers.database, application_name="forgetful") as conn:
        for statement in statements:
            conn.execute(statement.encode())
        yield


def found_soon(servers: Servers, code: str, named: str) -> Finding:
    """The finding, if two seconds are a standstill."""
    quick = servers.settings.health.model_copy(update={"stalled_after": timedelta(seconds=2)})
    impatient = replace(servers, settings=servers.settings.model_copy(update={"health": quick}))

    def look() -> Finding | None:
        found = impatient.errors().get(code)
        return found if found is not None and named in found.text else None

    found = wait_for(f"{code} names {named}", look)
    assert isinstance(found, Finding)
    return found


def test_failing_messages_that_fill_the_window_are_named(servers: Servers) -> None:
    servers.jetstream(fill_window)
    servers.sql(FAILING)
    found = found_soon(servers, "STREAM_STALLED", "its window is full: 2 of 2")
    assert "KeyError at shop.total:7" in found.text


def test_a_session_that_keeps_the_lanes_is_named(servers: Servers) -> None:
    servers.sql(EVENT.format("", ""))
    with holding(servers, "SELECT pg_advisory_xact_lock(relay_publisher_locks(), 3)"):
        found = found_soon(servers, "OUTBOX_STALLED", "has held lanes of the outbox")
    assert "forgetful" in found.text
    assert "pg_terminate_backend" in found.remedy


def test_a_locked_table_is_named_in_time(servers: Servers) -> None:
    with holding(servers, "LOCK TABLE inbox_messages IN ACCESS EXCLUSIVE MODE"):
        assert "TABLES_LOCKED" in servers.errors()


PUBLISHED = ", published_at, published_stream, published_seq"
#: What keeps rows from the archive: the stream they were published to, how, and what is named.
ARCHIVES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "a directory that is gone": ("FLT_EVENTS", lambda it: it.rmdir(), "STORE_UNREACHABLE"),
    "a stream that was deleted": ("FLT_FORMER", lambda _: None, "stream FLT_FORMER: the stream does not exist"),
    "nothing that is known": ("FLT_EVENTS", lambda _: None, "no cause is known"),
}


@pytest.mark.parametrize("fault", ARCHIVES)
def test_an_archive_that_does_not_take_what_is_due_is_an_error(
    servers: Servers, tmp_path: Path, fault: str
) -> None:
    stream, inject, named = ARCHIVES[fault]
    place = tmp_path / "archive"
    place.mkdir()
    archive = ArchiveSettings(after=timedelta(days=30), directory=place)
    flt = servers.settings.contexts["flt"].model_copy(update={"archive": archive})
    archiving = replace(servers, settings=servers.settings.model_copy(update={"contexts": {"flt": flt}}))
    assert archiving.errors() == {}
    servers.sql(EVENT.format(PUBLISHED, f", now() - interval '40 days', '{stream}', 1"))
    inject(place)
    found = archiving.errors()["ARCHIVE_STALLED"]
    assert found.subject == f"archive of flt.outbox/{stream}"
    assert "the first, " in found.text
    assert named in found.text


#: A worker of this host whose event loop hangs.
SILENT = """
import asyncio, sys, redis.asyncio
from relay.adapters.members import Members, this_process

async def main() -> None:
    client = redis.asyncio.Redis.from_url(sys.argv[1], decode_responses=True)
    await Members(client, sys.argv[2]).beat(this_process("worker", "silent"))
    await client.aclose()

asyncio.run(main())
print("beaten", flush=True)
sys.stdin.read()
"""


def test_a_worker_that_runs_and_does_not_beat_is_an_error(servers: Servers) -> None:
    command = [sys.executable, "-c", SILENT, servers.valkey.url, NAMESPACE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdin is not None
        assert worker.stdout.readline() == "beaten\n"
        assert servers.errors() == {}
        with servers.redis() as client:
            client.zincrby(f"{NAMESPACE}:members:beats", -60_000, "silent")
        assert "its event loop hangs" in servers.errors()["MEMBER_SILENT"].text
        worker.stdin.close()


@pytest.mark.parametrize(
    ("stream", "durable"),
    [("FLT_EVENTS", "flt__former"), ("RELAY_ADVISORIES", "relay__FLT_EVENTS__flt__former")],
)
def test_a_consumer_that_a_rename_left_behind_is_found(servers: Servers, stream: str, durable: str) -> None:
    config = ConsumerConfig(durable_name=durable, ack_policy=AckPolicy.EXPLICIT)
    servers.jetstream(lambda js: js.add_consumer(stream, config))
    servers.jetstream(lambda js: js.add_consumer("FLT_EVENTS", replace(config, durable_name="another__service")))
    found = [it.subject for it in servers.findings(close=True) if it.code == "CONSUMER_LEFT"]
    assert found == [f"consumer {stream}/{durable}"]


LETTER = (
    "INSERT INTO dead_letters (message_id, subject, class, reason, subscription, letter_stream, letter_seq)"
    " VALUES (gen_random_uuid(), 's', 'poison', 'x', 'own', '{}', 1)"
)
KNOWN: dict[str, str] = {
    "an event": EVENT.format(PUBLISHED, ", now(), '{}', 1"),
    "an archived event": "INSERT INTO archived_events (stream, last_seq, archived_at) VALUES ('{}', 1, now())",
    "a dead letter": LETTER,
}


@pytest.mark.parametrize("known", KNOWN)
def test_a_stream_that_a_rename_left_behind_is_found_while_it_holds_messages(servers: Servers, known: str) -> None:
    async def make(js: JetStreamContext) -> None:
        for name in ("FLT_FORMER", "FLT_EMPTY"):
            await js.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
        await js.publish("FLT_FORMER.x")

    async def remove(js: JetStreamContext) -> None:
        for name in ("FLT_FORMER", "FLT_EMPTY"):
            await js.delete_stream(name)

    servers.jetstream(make)
    try:
        for name in ("FLT_FORMER", "FLT_EMPTY", "FLT_GONE", "FLT_EVENTS", "FLT_DLQ"):
            servers.sql(KNOWN[known].replace("'{}', 1", f"'{name}', 1"))
        found = [it for it in servers.findings(close=True) if it.code == "STREAM_LEFT"]
    finally:
        servers.jetstream(remove)
        servers.sql("DELETE FROM archived_events")
    assert [it.subject for it in found] == ["stream FLT_FORMER"]
    assert "nats stream rm FLT_FORMER" in found[0].remedy


# --- no fault ---

CALM: dict[str, Callable[[Servers], Any]] = {
    "an idle system": lambda _it: None,
    "no process and nothing to do": lambda it: (
        it.sql("UPDATE scheduler_lease SET holder = NULL, expires_at = NULL"),
        it.redis().delete(f"{NAMESPACE}:__heartbeats__"),
    ),
    "a snoozed dead letter": lambda it: it.sql(LETTERS.format("3 days", "now() + interval '1 day'", 200)),
    "a failing message among good ones": lambda it: it.sql(
        FAILING,
        *[MESSAGE.format(", processed_at", "own", ", now()")] * 3,
    ),
    "a scheduler that has ended, and the next is to come": lambda it: it.sql(LED.format("-10 s")),
    "a gate of a job": lambda it: it.redis().set(
        f"{NAMESPACE}:gate:pull:flt:own", "0123456789abcdef0123456789abcdef:0", px=60_000
    ),
    "a message that came just now": lambda it: it.jetstream(lambda js: js.publish("flt.event.x.v1")),
}


@pytest.mark.parametrize("calm", CALM)
def test_what_is_no_fault_is_no_error(servers: Servers, calm: str) -> None:
    CALM[calm](servers)
    assert servers.errors() == {}
