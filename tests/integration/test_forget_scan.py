"""Redaction of a context: rows, messages and archived rows, beside others who read and write them."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NotFoundError

from relay.adapters.coldstore import FolderStore
from relay.adapters.postgres.outbox import KeptPayloads
from relay.adapters.postgres.payloads import PostgresPayloads
from relay.adapters.postgres.pool import connected
from relay.adapters.postgres.redacting import PLACES
from relay.commands.rewrite_archive import RedactArchive
from relay.devstack import NatsServer
from relay.domain.archive import StoreUnreachable
from relay.domain.identity import NatsMsgId
from relay.domain.large import Reference
from relay.domain.operators import Operator
from relay.domain.redaction import REDACTED, Redaction
from relay.ops.redaction import Certificate, Redactor
from relay.settings import ContextSettings, Settings
from tests.integration.archiving import AFTER, Archive, archived
from tests.integration.publishing import Relay, event, outbox_rows, query
from tests.integration.reconciling import command, held, only

pytestmark = pytest.mark.anyio
ADA, BOB = "ada@example.org", "bob@example.org"
BY = Operator("ann")
#: Columns that hold names, states, ids and figures of the system, or who has operated.
KEPT = {
    "*": (
        "event_type",
        "type",
        "subscription",
        "stream",
        "status",
        "state",
        "class",
        "subject_type",
        "name",
        "job",
    ),
    "outbox_events": ("aggregate_type", "published_stream"),
    "inbox_messages": ("ack_subject", "dead_letter_class"),
    "task_outbox": ("queue", "waits_for"),
    "dead_letters": ("letter_stream", "closed_by"),
    "processed_events": ("handler",),
    "inbox_watermarks": ("ahead",),
    "inbox_replays": ("actor", "source"),
    "scheduled_jobs": ("schedule",),
    "scheduled_runs": ("who",),
    "scheduler_lease": ("who",),
    "relay_wakeup": ("brake",),
    "audit_log": ("actor", "action"),
    "subject_keys": ("master", "wrapped"),
    "selections": ("kind", "action"),
    "archive_batches": ("kind", "sha256"),
    "alert_conditions": ("code", "place"),
    "history": ("step", "kind", "handling", "waited"),
    "history_tallies": ("kind", "handling"),
    "controls": ("what", "act", "by"),
    "relay_alembic_version": ("version_num",),
}
COLUMNS = """
    SELECT table_name, column_name FROM information_schema.columns
    WHERE table_schema = 'public' AND data_type IN ('text', 'jsonb', 'json', 'bytea', 'ARRAY', 'character varying')
"""


def person(email: str = ADA, key: str = "v1", **more: Any) -> Any:
    return event(key, payload={"customer": {"email": email}, "note": f"to {email}", **more})


def settings_of(relay: Relay, **more: Any) -> Settings:
    stream = {"name": relay.stream, "subjects": [f"{relay.context}.event.>"]}
    payloads = {"directory": more.pop("fetched", "/nowhere")}
    context = {"database_url": relay.url, "stream": stream, **more}
    contexts = {relay.context: context}
    return Settings.model_validate({"nats_url": relay.nats_url, "payloads": payloads, "contexts": contexts})


@asynccontextmanager
async def opened(context: ContextSettings) -> AsyncIterator[Any]:
    async with connected(context.database, "operator") as source:
        yield source


async def forget(relay: Relay, *values: str, rounds: int = 12, by: Operator = BY, **more: Any) -> Certificate:
    wanted = Redaction(values or (ADA,), **more.pop("wanted", {}))
    return await Redactor(settings_of(relay, **more), opened, relay.nats, wanted, rounds=rounds).redact(by)


async def stored(relay: Relay) -> dict[int, Any]:
    """The messages of the stream by their sequences."""

    async def read(js: Any) -> dict[int, Any]:
        found = {}
        for seq in range(1, (await js.stream_info(relay.stream)).state.last_seq + 1):
            try:
                found[seq] = await js.get_msg(relay.stream, seq)
            except NotFoundError:
                continue
        return found

    return dict(await relay.admin(read))


def names_in(folder: Path) -> list[str]:
    return [it.name for it in folder.iterdir()]


def test_every_column_is_one_where_values_are_looked_for_or_known_to_have_none(database_url: str) -> None:
    for row in query(database_url, COLUMNS):
        table, column = row["table_name"], row["column_name"]
        place = PLACES.get(table)
        looked = place is not None and column in place.columns
        assert looked or column in (*KEPT["*"], *KEPT.get(table, ())), f"{table}.{column}"


async def test_a_person_goes_and_reconciliation_brings_nothing_back(relay: Relay) -> None:
    await relay.create_stream()
    ids = relay.add(person(), person(BOB), person(key=ADA), person("x" + ADA))
    await relay.drained()
    before = {it["id"]: it for it in outbox_rows(relay.url)}
    done = await forget(relay)
    place = f"stream {relay.stream}"
    assert done.counts == {(relay.context, "outbox_events"): 2, (relay.context, place): 2}
    left = await held(relay)
    assert (done.complete, done.again, sorted(left)) == (True, {}, sorted([ids[1], ids[3]]))
    rows = {it["id"]: it for it in outbox_rows(relay.url)}
    assert [rows[ids[number]] for number in (1, 3)] == [before[ids[number]] for number in (1, 3)]
    assert rows[ids[0]]["payload"] == {"customer": {"email": REDACTED}, "note": f"to {REDACTED}"}
    assert rows[ids[0]] == {**before[ids[0]], "payload": rows[ids[0]]["payload"]}
    assert (rows[ids[2]]["aggregate_id"], rows[ids[2]]["partition_key"]) == (REDACTED, f"vibe:{REDACTED}")

    audit = command(relay)
    for turn in range(3):
        assert only(await audit.tick(turn)).lost == 0
    assert only(await audit.everything(repair=True)).lost == 0
    assert {it["id"]: it for it in outbox_rows(relay.url)} == rows
    assert await held(relay) == left

    # The stream goes back to its beginning: what was erased is not published again, the others are.
    await relay.admin(lambda js: js.delete_stream(relay.stream))
    await relay.create_stream()
    assert only(await audit.everything(repair=True)).tail.count == 2
    again = await forget(relay)
    assert (again.counts, again.complete, len(again.earlier)) == ({}, True, 1)


async def test_who_has_not_had_a_message_gets_it_without_the_value(relay: Relay) -> None:
    await relay.create_stream()

    async def subscribe(js: Any) -> None:
        config = ConsumerConfig(durable_name="late", ack_policy=AckPolicy.EXPLICIT)
        await js.add_consumer(relay.stream, config)

    await relay.admin(subscribe)
    [id] = relay.add(person())
    await relay.drained()
    done = await forget(relay)
    assert (done.complete, done.again) == (True, {relay.stream: 1})
    await relay.drained()

    async def read(js: Any) -> Any:
        subscription = await js.pull_subscribe_bind("late", stream=relay.stream)
        [message] = await subscription.fetch(5, timeout=1)
        return message

    message = await relay.admin(read)
    sent = NatsMsgId.read(message.headers)
    assert sent is not None
    assert sent.event_id == id
    assert json.loads(message.data)["payload"]["customer"] == {"email": REDACTED}
    assert (await forget(relay)).counts == {}


async def test_who_has_not_had_a_large_payload_gets_it_without_the_value(relay: Relay) -> None:
    """The message only refers to it, and a reference to what it was before could not be followed."""
    await relay.create_stream()
    limit = 64 * 1024
    publisher = relay.command(kept=KeptPayloads(relay.context, limit))

    async def subscribe(js: Any) -> None:
        config = ConsumerConfig(durable_name="late", ack_policy=AckPolicy.EXPLICIT)
        await js.add_consumer(relay.stream, config)

    await relay.admin(subscribe)
    large = {"payload": {"customer": {"email": ADA}, "picture": "x" * limit}}
    [id] = relay.add(event("v1", **large))
    [other] = relay.add(event("v2", payload={"customer": {"email": BOB}, "picture": "y" * limit}))
    await relay.drained(publisher)
    before = await stored(relay)
    done = await forget(relay)
    assert (done.complete, done.again) == (True, {relay.stream: 1})
    assert done.counts == {(relay.context, "outbox_events"): 1, (relay.context, f"stream {relay.stream}"): 1}
    await relay.drained(publisher)

    after = await stored(relay)
    assert [*after] == [2, 3]
    assert after[2].data == before[2].data
    references = [Reference.of(it.headers) for it in after.values()]
    assert [it.id for it in references if it] == [other, id]
    pieces = PostgresPayloads(relay.pool.connection).pieces
    contents = [b"".join([piece async for piece in pieces(it)]) for it in references if it]
    assert [hashlib.sha256(it).hexdigest() for it in contents] == [it.sha256 for it in references if it]
    assert json.loads(contents[1])["customer"] == {"email": REDACTED}
    assert (await forget(relay)).counts == {}


async def test_a_message_that_waits_in_an_inbox_refers_to_what_its_payload_is_now(relay: Relay) -> None:
    await relay.create_stream()
    limit = 64 * 1024
    publisher = relay.command(kept=KeptPayloads(relay.context, limit))
    for email in (ADA, BOB):
        relay.add(event(email, payload={"email": email, "picture": "x" * limit}))
    await relay.drained(publisher)
    insert = """
        INSERT INTO inbox_messages (message_id, subject, subscription, stream, stream_seq, event_type, received_at,
                                    body, headers)
        VALUES (gen_random_uuid(), %s, 'late', %s, %s, 'vibe_created', now(), %s, %s::jsonb) RETURNING headers"""
    for seq, it in (await stored(relay)).items():
        query(relay.url, insert, it.subject, relay.stream, seq, it.data, json.dumps(dict(it.headers)))
    assert (await forget(relay)).complete
    sql = "SELECT headers FROM inbox_messages ORDER BY stream_seq"
    pieces = PostgresPayloads(relay.pool.connection).pieces
    for row, email in zip(query(relay.url, sql), (REDACTED, BOB), strict=True):
        reference = Reference.of(row["headers"])
        assert reference is not None
        content = b"".join([piece async for piece in pieces(reference)])
        assert json.loads(content)["email"] == email
        assert (len(content), hashlib.sha256(content).hexdigest()) == (reference.size, reference.sha256)
    assert (await forget(relay)).counts == {}


async def test_files_that_workers_have_fetched_go_if_they_have_the_value(relay: Relay, tmp_path: Path) -> None:
    await relay.create_stream()
    names = [f"{relay.context}.{number}.{number:064}" for number in range(2)]
    for name, email in zip(names, (ADA, BOB), strict=True):
        (tmp_path / name).write_text(json.dumps({"email": email}))
    done = await forget(relay, fetched=tmp_path)
    assert (done.complete, done.counts) == (True, {(relay.context, "fetched payloads"): 1})
    assert names_in(tmp_path) == names[1:]


async def test_a_message_of_another_program_stays_until_its_consumers_have_it(relay: Relay) -> None:
    await relay.create_stream()

    async def publish(js: Any) -> None:
        config = ConsumerConfig(durable_name="late", ack_policy=AckPolicy.EXPLICIT)
        await js.add_consumer(relay.stream, config)
        await js.publish(f"{relay.context}.event.x.v1", json.dumps({"mail": ADA}).encode())

    async def acknowledge(js: Any) -> None:
        subscription = await js.pull_subscribe_bind("late", stream=relay.stream)
        [message] = await subscription.fetch(1, timeout=5)
        await message.ack_sync()

    await relay.admin(publish)
    done = await forget(relay, rounds=2)
    assert (done.complete, [*await stored(relay)]) == (False, [1])
    await relay.admin(acknowledge)
    done = await forget(relay, rounds=3)
    assert (done.complete, [*await stored(relay)]) == (True, [])


async def test_a_row_that_somebody_has_locked_is_left_and_named_then_redacted(relay: Relay) -> None:
    relay.add(person(), person(key="v2"))
    with psycopg.connect(relay.url) as other:
        other.execute("SELECT FROM outbox_events WHERE aggregate_id = 'v1' FOR UPDATE")
        done = await forget(relay, rounds=2)
        assert done.counts == {(relay.context, "outbox_events"): 1}
        assert done.left[relay.context, "outbox_events"] == "1 rows are locked by others"
    done = await forget(relay)
    assert (done.complete, done.counts) == (True, {(relay.context, "outbox_events"): 1})
    await relay.create_stream()
    await relay.drained()
    assert [json.loads(it.data)["payload"]["note"] for it in (await stored(relay)).values()] == [
        f"to {REDACTED}"
    ] * 2


async def test_a_key_of_an_event_that_waits_changes_once_it_is_published(relay: Relay) -> None:
    relay.add(person(BOB, key=ADA))
    done = await forget(relay)
    assert done.left == {(relay.context, "outbox_events"): "1 rows keep a value in a key"}
    await relay.create_stream()
    await relay.drained()
    assert (await forget(relay)).complete
    assert {it["partition_key"] for it in outbox_rows(relay.url)} == {f"vibe:{REDACTED}"}


async def test_only_the_wanted_type_and_fields(relay: Relay) -> None:
    await relay.create_stream()
    relay.add(person(), event("v2", event_type="vibe_closed", payload={"customer": {"email": ADA}}))
    await relay.drained()
    await forget(relay, wanted={"paths": ("customer.email",), "type": "vibe_created"})
    assert [it["payload"] for it in outbox_rows(relay.url)] == [
        {"customer": {"email": REDACTED}, "note": f"to {ADA}"},
        {"customer": {"email": ADA}},
    ]
    assert [*await stored(relay)] == [2]


async def test_many_rows_are_read_in_parts_and_changed_a_few_at_a_time(relay: Relay) -> None:
    query(
        relay.url,
        """
        INSERT INTO inbox_messages (message_id, subject, body)
        SELECT gen_random_uuid(), 's', convert_to('{"n": ' || n || ', "mail": "' || CASE WHEN mod(n, 100) = 0
            THEN 'ada@example.org' ELSE n || '@example.org' END || '"}', 'UTF8')
        FROM generate_series(1, 30000) AS n
        """,
    )
    done = await forget(relay)
    assert done.counts == {(relay.context, "inbox_messages"): 300}
    [row] = query(
        relay.url,
        "SELECT count(*) FILTER (WHERE convert_from(body, 'UTF8')::json ->> 'mail' = '(redacted)') AS redacted,"
        " count(*) FILTER (WHERE convert_from(body, 'UTF8')::json ->> 'mail' ="
        " (convert_from(body, 'UTF8')::json ->> 'n') || '@example.org') AS others FROM inbox_messages",
    )
    assert row == {"redacted": 300, "others": 29_700}


async def test_without_the_right_to_change_a_table_this_is_said_and_the_rest_is_done(
    relay: Relay, database_url: str
) -> None:
    query(
        database_url, "INSERT INTO audit_log (actor, action, ids, note) VALUES ('x', 'y', '{}', %s)", f"for {ADA}"
    )
    relay.add(person())
    query(database_url, "DROP ROLE IF EXISTS scanner")
    query(database_url, "CREATE ROLE scanner")
    query(database_url, "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO scanner")
    query(database_url, "REVOKE UPDATE ON audit_log FROM scanner")

    @asynccontextmanager
    async def lesser(context: ContextSettings) -> AsyncIterator[Any]:
        async with connected(context.database, "operator") as source:
            async with source() as conn:
                await conn.execute("SET ROLE scanner")
            yield source

    try:
        done = await Redactor(settings_of(relay), lesser, relay.nats, Redaction((ADA,)), rounds=2).redact(BY)
    finally:
        query(database_url, "DROP OWNED BY scanner")
        query(database_url, "DROP ROLE scanner")
    assert done.counts == {(relay.context, "outbox_events"): 1}
    assert "no right to change it" in done.left[relay.context, "audit_log"]
    assert (await forget(relay)).complete
    assert ADA not in str(query(database_url, "SELECT note, about FROM audit_log"))


# --- the archive ---

#: The new file, two of the manifest, the old file; and how many batches have a value.
STEPS, BATCHES = 4, 2


class Failing(FolderStore):
    """A store that fails at one of its changes, before it or after it."""

    def __init__(self, root: Path, at: int, *, after: bool) -> None:
        super().__init__(root)
        self.at, self.after, self.count = at, after, 0

    async def put(self, name: str, content: Any) -> None:
        self._step(after=False)
        await super().put(name, content)
        self._step(after=True)

    async def delete(self, name: str) -> None:
        self._step(after=False)
        await super().delete(name)
        self._step(after=True)

    def _step(self, *, after: bool) -> None:
        self.count += not after
        if self.count == self.at and after is self.after:
            raise StoreUnreachable("it is gone")


@pytest.fixture
async def archive(database_url: str, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Archive]:
    async with archived(database_url, nats_server.url, tmp_path / "cold") as archive:
        yield archive


async def fill(archive: Archive) -> None:
    archive.relay.add(person(), person(BOB), person(key=ADA))
    await archive.relay.drained()
    query(archive.url, "UPDATE outbox_events SET published_at = now() - interval '100 days'")
    archive.messages(3)
    query(archive.url, "UPDATE inbox_messages SET body = convert_to(%s, 'UTF8')", json.dumps({"mail": ADA}))
    archive.tasks(2)
    await archive.command().run(BY)


def contents(archive: Archive) -> bytes:
    """All bytes of the archive, packed and unpacked; bodies in plain text."""
    found = b""
    for path in archive.root.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        found += data + (gzip.decompress(data) if path.suffix == ".gz" else b"")
    return found.replace(ADA.encode().hex().encode(), ADA.encode())


async def test_files_are_written_anew_and_verify(archive: Archive) -> None:
    await fill(archive)
    before = {it["number"]: it for it in archive.manifests("tasks")}
    assert ADA.encode() in contents(archive)
    config = {"archive": {"after": f"{AFTER.days}d", "directory": str(archive.root)}}
    done = await forget(archive.relay, **config)
    assert done.counts[archive.relay.context, "archive outbox"] == 2
    assert done.counts[archive.relay.context, "archive inbox"] == 3
    assert (done.complete, ADA.encode() in contents(archive)) == (True, False)
    assert BOB.encode() in contents(archive)
    assert [it for it in await archive.verified() if it.error or it.left_over] == []
    assert {it["number"]: it for it in archive.manifests("tasks")} == before
    assert [json.loads(it)["payload"]["note"] for it in archive.lines()] == [
        f"to {REDACTED}",
        f"to {BOB}",
        f"to {REDACTED}",
    ]
    assert (await forget(archive.relay, **config)).counts == {}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(1, 10))
async def test_a_store_that_fails_at_any_step_leaves_an_archive_that_verifies(
    archive: Archive, step: int, *, after: bool
) -> None:
    await fill(archive)
    wanted, store = Redaction((ADA,)), Failing(archive.root, step, after=after)
    if step > STEPS * BATCHES:
        assert [it.rows async for it in RedactArchive(archive.tables, store, wanted).redact(BY)] == [3, 2]
        return
    with pytest.raises(StoreUnreachable):
        [_ async for _ in RedactArchive(archive.tables, store, wanted).redact(BY)]
    await archive.command().run(BY)
    assert [it for it in await archive.verified() if it.error] == []
    assert len(archive.in_archive()) == 3
    [_ async for _ in RedactArchive(archive.tables, FolderStore(archive.root), wanted).redact(BY)]
    assert ADA.encode() not in contents(archive)
    assert [it for it in await archive.verified() if it.error or it.left_over] == []
