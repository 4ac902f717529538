"""A producer's database that was set back: what the stream has and the outbox has not is found, and put right."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from relay import Outbox
from relay.adapters.coldstore import FolderStore
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.adapters.postgres.archive import PostgresArchive
from relay.adapters.postgres.orphans import EVENT_TYPE, PostgresOrphans
from relay.commands.adopt import DecideOrphans
from relay.commands.archive import ArchiveRows
from relay.commands.orphans import FindOrphans, OrphanLimits
from relay.domain.envelopes import Envelope
from relay.domain.facts import OrphansFound
from relay.domain.operators import Operator
from relay.domain.routing import Routing
from tests.integration.publishing import Relay, event, outbox_rows, query
from tests.integration.reconciling import foreign, held, publish, recreate

pytestmark = pytest.mark.anyio

ANN = Operator("ann", "restored")
DAY = timedelta(days=1)
#: What an adopted row must have as before. Its number is new, and the attempt is not counted again.
SAME = (
    *("id", "aggregate_type", "aggregate_id", "event_type", "event_version", "payload", "occurred_at"),
    *("correlation_id", "causation_id", "partition_key", "topic", "headers", "originals", "generation"),
    *("published_stream", "published_seq"),
)


def finder(relay: Relay, *others: str, page: int = 1_000) -> FindOrphans:
    ledger, auditor = PostgresOrphans(relay.pool.connection), NatsStreamAuditor(relay.nats)
    limits = OrphanLimits(page=page)
    return FindOrphans(relay.context, [relay.stream], others, ledger, auditor, relay.facts.append, limits)


def deciding(relay: Relay, envelope: Envelope | str = "handler") -> DecideOrphans:
    rows, reader = PostgresOrphans(relay.pool.connection), NatsStreamAuditor(relay.nats)
    return DecideOrphans(relay.context, finder(relay), reader, rows, Routing(context=relay.context), envelope)


def set_back(relay: Relay, ids: Sequence[UUID]) -> None:
    """The database as it was before it wrote these rows."""
    query(relay.url, "DELETE FROM outbox_events WHERE id = ANY (%s)", list(ids))


async def found(relay: Relay) -> list[UUID | None]:
    return [orphan.event_id for orphan in (await finder(relay).scan(relay.stream)).orphans]


def opened(relay: Relay) -> list[UUID]:
    rows = query(relay.url, "SELECT event_id FROM orphaned_events WHERE reported_at IS NULL ORDER BY stream_seq")
    return [row["event_id"] for row in rows]


# --- finding ---


async def test_what_was_published_after_the_backup_is_found_in_its_order_and_told_once(relay: Relay) -> None:
    await relay.create_stream()
    ids = await publish(relay, 10)
    set_back(relay, ids[5:])
    find = finder(relay)
    await find.tick(page=0)
    await find.tick(page=1)
    assert opened(relay) == await found(relay) == ids[5:]
    [fact] = [fact for fact in relay.facts if isinstance(fact, OrphansFound)]
    assert (fact.stream, fact.count, list(fact.ids)) == (relay.stream, 5, ids[5:])
    [looked] = await find.look()
    assert [it.event_id for it in looked.orphans] == ids[5:]


async def test_a_database_that_lost_all_of_its_events_is_found_by_the_streams_of_the_configuration(
    relay: Relay,
) -> None:
    await relay.create_stream()
    ids = await publish(relay, 3)
    set_back(relay, ids)
    await finder(relay).tick(page=0)
    assert opened(relay) == ids


async def test_what_nobody_is_to_know_is_deleted_from_the_stream_with_its_copies(relay: Relay) -> None:
    await relay.create_stream()
    ids = await publish(relay, 3)
    query(relay.url, "UPDATE outbox_events SET generation = generation + 1, published_at = NULL")
    await relay.drained()
    set_back(relay, ids[1:])
    dry = await deciding(relay).remove(relay.stream, ANN, dry_run=True)
    assert (dry.ids, len(await held(relay))) == (ids[1:], 6)
    assert (await deciding(relay).remove(relay.stream, ANN)).done == 2
    assert await held(relay) == ids[:1] * 2
    assert {row["action"] for row in query(relay.url, "SELECT action FROM audit_log")} == {"outbox.remove"}
    assert (await deciding(relay).remove(relay.stream, ANN)).done == 0
    assert await found(relay) == opened(relay) == []


@pytest.mark.parametrize("state", ["healthy", "replayed", "waiting", "sent, not recorded"])
async def test_what_the_outbox_knows_is_no_orphan(relay: Relay, state: str) -> None:
    await relay.create_stream()
    ids = await publish(relay, 3)
    match state:
        case "replayed":
            query(relay.url, "UPDATE outbox_events SET generation = generation + 1, published_at = NULL")
            await relay.drained()
        case "waiting":
            relay.add(event())
        case "sent, not recorded":
            query(
                relay.url,
                "UPDATE outbox_events SET published_at = NULL, published_stream = NULL, published_seq = NULL"
                " WHERE id = %s",
                ids[2],
            )
        case _:
            pass
    await finder(relay).tick(page=0)
    assert await found(relay) == opened(relay) == []


#: How far the clock of the database was behind that of the stream when the rows were published.
BEHIND = {"in step": timedelta(0), "behind": timedelta(hours=3), "ahead": timedelta(hours=-3)}


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
async def test_archived_events_are_known_and_what_was_lost_after_them_is_not(
    relay: Relay, tmp_path: Path, behind: timedelta
) -> None:
    await relay.create_stream(max_age=3_600)
    gone, kept = await publish(relay, 3), await publish(relay, 2)
    query(relay.url, "UPDATE outbox_events SET published_at = published_at - %s", behind)
    query(relay.url, "UPDATE outbox_events SET published_at = published_at - %s WHERE id = ANY (%s)", DAY, gone)
    assert await archive(relay, tmp_path) == len(gone)
    lost = await publish(relay, 2)
    set_back(relay, lost)
    await finder(relay).tick(page=0)
    assert opened(relay) == await found(relay) == lost
    # All of them leave, and nothing of the stream is left in the outbox.
    query(relay.url, "UPDATE outbox_events SET published_at = published_at - %s", DAY)
    assert await archive(relay, tmp_path) == len(kept)
    assert await found(relay) == lost


async def archive(relay: Relay, place: Path) -> int:
    """Archive what was published longer than half a day ago; returns how many rows left."""
    tables, auditor = PostgresArchive(relay.pool.connection, relay.context), NatsStreamAuditor(relay.nats)
    command = ArchiveRows(relay.context, DAY / 2, tables, FolderStore(place), auditor, relay.facts.append)
    return sum(batch.rows for batch in (await command.run(ANN)).batches)


async def test_events_that_an_older_release_has_archived_are_known(relay: Relay) -> None:
    await relay.create_stream()
    ids = await publish(relay, 2)
    set_back(relay, ids)
    query(
        relay.url,
        "INSERT INTO archive_batches (kind, number, rows, size, sha256, first_id, first_at, last_id, last_at)"
        " VALUES ('outbox', 1, 2, 1, '', %s, now(), %s, now())",
        *ids,
    )
    assert await found(relay) == []


async def test_messages_of_other_programs_are_no_orphans(relay: Relay) -> None:
    """With ids of their own, with UUIDs, with none, and those of another context in the same stream."""
    await relay.create_stream()
    await foreign(relay, 2)

    async def send(js: Any) -> None:
        for headers in (
            {"Nats-Msg-Id": str(uuid4())},
            {"Nats-Msg-Id": "order-7", "Relay-Partition-Key": "order:7"},
            {"Nats-Msg-Id": f"{uuid4()}.x", "Relay-Partition-Key": "order:7"},
        ):
            await js.publish(f"{relay.context}.event.other.v1", b"{}", headers=headers)

    await relay.admin(send)
    await finder(relay).tick(page=0)
    assert await found(relay) == opened(relay) == []
    ids = await publish(relay, 1)
    set_back(relay, ids)
    assert await found(relay) == ids
    assert (await finder(relay, relay.context).scan(relay.stream)).orphans == []


@pytest.mark.parametrize("behind", [0, 12], ids=["at the end", "deep below newer events"])
async def test_the_tick_finds_them_wherever_the_ledger_has_its_gap(relay: Relay, behind: int) -> None:
    await relay.create_stream()
    kept = await publish(relay, 6)
    lost = await publish(relay, 4)
    new = await publish(relay, behind, "v2")
    set_back(relay, lost)
    await finder(relay, page=2).tick(page=0)
    assert opened(relay)[:2] == lost[:2]
    assert not {*opened(relay)} & {*kept, *new}


@pytest.mark.parametrize("how", ["purged", "made anew"])
async def test_what_the_stream_has_lost_since_is_no_orphan_any_more(relay: Relay, how: str) -> None:
    await relay.create_stream()
    ids = await publish(relay, 4)
    set_back(relay, ids[2:])
    await finder(relay).tick(page=0)
    assert opened(relay) == ids[2:]
    if how == "purged":
        await relay.admin(lambda js: js.purge_stream(relay.stream))
    else:
        await recreate(relay)
    await publish(relay, 1)
    await finder(relay).tick(page=0)
    assert opened(relay) == []


async def test_a_look_is_bounded_and_goes_on_where_it_ended(relay: Relay) -> None:
    await relay.create_stream()
    ids = await publish(relay, 9)
    set_back(relay, ids[2:])
    find, seen, after = finder(relay, page=2), [], 0
    while True:
        page = await find.scan(relay.stream, after, 3)
        assert len(page.orphans) <= 3
        seen += [orphan.event_id for orphan in page.orphans]
        if page.next_after is None:
            break
        after = page.next_after
    assert seen == ids[2:]


# --- adopting ---


@pytest.mark.parametrize("envelope", ["handler", "message-envelope", "cloudevents", "raw"])
async def test_an_adopted_event_is_the_row_that_was_lost(relay: Relay, envelope: str) -> None:
    await relay.create_stream()
    payload = {"amount": 1234567890123456789, "part": [None, 0.1, "é"], "data": {}}
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "X-Mine": "7"}
    relay.add(
        event(payload=payload, headers=trace, correlation_id=uuid4(), causation_id=uuid4()),
        event("v2", topic=f"{relay.context}.event.special", payload={"x": 1}),
        event(id="order-7", payload={"y": 2}),
    )
    await relay.drained(relay.command(envelope=envelope))
    before = outbox_rows(relay.url)
    set_back(relay, [row["id"] for row in before])
    decided = await deciding(relay, envelope).adopt(relay.stream, ANN)
    assert (decided.done, decided.refused) == (len(before), [])
    after = outbox_rows(relay.url)
    for old, new in zip(before, after, strict=True):
        differing = {name: (old[name], new[name]) for name in SAME if old[name] != new[name]}
        if envelope == "raw" and new["topic"]:
            differing.pop("event_type", None)  # the subject alone says it
        assert not differing
        assert new["published_at"] is not None
    assert await found(relay) == []


@pytest.mark.parametrize("act", ["adopt", "report"])
async def test_orphans_that_come_after_the_count_stay(relay: Relay, act: str) -> None:
    await relay.create_stream()
    ids = await publish(relay, 3)
    set_back(relay, ids[1:])
    counted = await getattr(deciding(relay), act)(relay.stream, ANN, dry_run=True)
    late = await publish(relay, 2)
    set_back(relay, late)
    assert (await getattr(deciding(relay), act)(relay.stream, ANN, until=counted.last)).done == counted.done == 2
    assert set(late) <= set(await found(relay))


async def test_to_adopt_again_changes_nothing_and_each_act_is_audited(relay: Relay) -> None:
    await relay.create_stream()
    ids = await publish(relay, 4)
    set_back(relay, ids[1:])
    assert (await deciding(relay).adopt(relay.stream, ANN, dry_run=True)).done == 3
    assert len(outbox_rows(relay.url)) == 1
    assert (await deciding(relay).adopt(relay.stream, ANN)).done == 3
    rows = outbox_rows(relay.url)
    assert (await deciding(relay).adopt(relay.stream, ANN)).done == 0
    assert outbox_rows(relay.url) == rows
    [entry] = query(relay.url, "SELECT actor, action, ids, note FROM audit_log")
    assert (entry["actor"], entry["action"], entry["note"]) == ("ann", "outbox.adopt", "restored")
    assert sorted(entry["ids"]) == sorted(map(str, ids[1:]))
    assert opened(relay) == []


async def test_within_a_key_adopted_events_stand_where_the_stream_has_them(relay: Relay) -> None:
    """Before the events that were written since the restore, published or not, and behind those of the backup."""
    await relay.create_stream()
    kept = [*await publish(relay, 2), *await publish(relay, 1, "v2")]
    lost = [*await publish(relay, 3), *await publish(relay, 2, "v2")]
    new = [*await publish(relay, 2), *await publish(relay, 1, "v2")]
    waiting = relay.add(event())
    set_back(relay, lost)
    await deciding(relay).adopt(relay.stream, ANN)
    order = [row["id"] for row in outbox_rows(relay.url) if row["aggregate_id"] == "v1"]
    assert order == [*kept[:2], *lost[:3], *new[:2], *waiting]
    order = [row["id"] for row in outbox_rows(relay.url) if row["aggregate_id"] == "v2"]
    assert order == [kept[2], *lost[3:], new[2]]
    await relay.drained()
    assert len(await relay.messages()) == 12


async def test_what_was_unpublished_in_the_backup_is_published_again_and_adopted_by_nobody(relay: Relay) -> None:
    await relay.create_stream()
    ids = await publish(relay, 5)
    set_back(relay, ids[3:])
    query(
        relay.url,
        "UPDATE outbox_events SET published_at = NULL, published_stream = NULL, published_seq = NULL,"
        " publish_attempts = 0 WHERE id = %s",
        ids[2],
    )
    assert (await deciding(relay).adopt(relay.stream, ANN)).done == 2
    await relay.drained()
    assert [row["id"] for row in outbox_rows(relay.url)] == ids
    assert len(await relay.messages()) == 5  # the stream recognised it


async def test_an_id_that_was_given_again_keeps_its_new_row(relay: Relay) -> None:
    await relay.create_stream()
    relay.add(event(id="order-7", payload={"old": True}))
    await relay.drained()
    [old] = outbox_rows(relay.url)
    set_back(relay, [old["id"]])
    query(
        relay.url,
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, originals)"
        " VALUES (gen_random_uuid(), 'vibe', 'v1', 'vibe_created', '{\"new\": true}', '{\"id\": \"order-7\"}')",
    )
    decided = await deciding(relay).adopt(relay.stream, ANN)
    assert (decided.done, [(id, error.code) for id, error in decided.refused]) == (0, [(old["id"], "NOT_ADOPTED")])
    assert [row["payload"] for row in outbox_rows(relay.url)] == [{"new": True}]


# --- reporting ---


async def test_a_report_is_an_event_for_the_consumers_and_ends_the_finding(relay: Relay) -> None:
    await relay.create_stream()
    ids = await publish(relay, 4)
    set_back(relay, ids[2:])
    await finder(relay).tick(page=0)
    assert (await deciding(relay).report(relay.stream, ANN)).done == 2
    assert opened(relay) == await found(relay) == []
    await relay.drained()
    told = (await relay.bodies())[-1]
    assert told["event_type"] == EVENT_TYPE
    assert [it["id"] for it in told["payload"]["events"]] == [str(id) for id in ids[2:]]
    assert [it["stream_seq"] for it in told["payload"]["events"]] == [3, 4]
    assert (await deciding(relay).report(relay.stream, ANN)).done == 0
    await finder(relay).tick(page=0)
    assert opened(relay) == []


async def test_contexts_that_share_a_database_know_only_their_own(database_url: str, nats_server: Any) -> None:
    """Each has its schema; here only one of them was set back."""
    async with Relay(database_url, nats_server.url) as one:
        await one.create_stream()
        ids = await publish(one, 2)
        set_back(one, ids[1:])
        assert await found(one) == ids[1:]
        assert Outbox(one.context, undeclared=True) is not None
