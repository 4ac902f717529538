"""A replay puts old messages into one inbox, wherever they are kept, in order, and goes on where a worker died."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from consumer.replay import Producer, ReplayIntoInbox
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor, StreamReader
from relay.adapters.postgres.outbox import KeptPayloads
from relay.adapters.postgres.replays import PostgresReplays, PublishedEvents
from relay.devstack import NatsServer, ValkeyServer
from relay.domain.large import Reference
from relay.domain.operators import Operator
from relay.domain.replays import ReplayCounts, ReplayPlace, ReplayRunning, ReplaySource, UnknownReplay
from relay.domain.routing import Routing
from tests.integration.consuming import SUBSCRIPTION, Handler, Subscription, another, subscribed
from tests.integration.ops_api import configured, serving
from tests.integration.test_cli_operating import Shell

pytestmark = pytest.mark.anyio
BOB = Operator("bob", "new service")
ASKED: dict[str, Any] = {
    "since": None,
    "until": None,
    "key": None,
    "event_type": None,
    "again": False,
    "rate": 1000,
}


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


def replays(sub: Subscription) -> PostgresReplays:
    return PostgresReplays(sub.pool.connection)


def work(sub: Subscription, **parts: Any) -> ReplayIntoInbox:
    subject = f"{sub.name}.event.>"
    routing = Routing(template=f"{sub.name}.event.{{name}}.v{{version}}", context=sub.name)
    producer = Producer(
        events=PublishedEvents(sub.pool.connection), routing=routing, envelope="handler", system_actor="system"
    )
    usual = ReplayIntoInbox(
        stream=sub.stream,
        filter_subject=subject,
        envelope="handler",
        replays=replays(sub),
        reader=StreamReader(sub.nats, stream=sub.stream, durable=sub.durable, filter_subject=subject),
        auditor=NatsStreamAuditor(sub.nats),
        inbox=sub.inbox,
        pull=sub.pull(),
        producer=producer,
    )
    return replace(usual, **parts)


async def replay(sub: Subscription, **asked: Any) -> dict[str, Any]:
    """Ask for a replay, and carry it to its end; returns how it went."""
    id = await replays(sub).start(sub.subscription, BOB, **(ASKED | asked))
    while (found := await replays(sub).take([sub.subscription])) is not None:
        await work(sub).run(found, lambda: True)
    [row] = await replays(sub).list(1, id)
    return row


async def handled(sub: Subscription, *ids: UUID) -> list[UUID]:
    handler = Handler.answering(200)
    for id in ids:
        await sub.process(handler).process(id)
    return [it.message_id for it in handler.requests]


def counts(row: dict[str, Any]) -> tuple[str, int, int, int]:
    return row["state"], row["added"], row["repeated"], row["skipped"]


async def came(sub: Subscription, count: int, **headers: str) -> list[UUID]:
    sent = [await sub.send(**headers) for _ in range(count)]
    await sub.pull().accept(await sub.fetch())
    return sent


async def test_history_fills_a_new_subscription_in_order_and_no_other_sees_it(sub: Subscription) -> None:
    old = await came(sub, 5)
    await handled(sub, *old)
    before = await sub.rows()
    new = await another(sub, "newcomer")
    assert counts(await replay(new)) == ("finished", 5, 0, 0)
    rows = [row for row in await sub.rows() if row["subscription"] == "newcomer"]
    assert [row["source_id"] for row in rows] == old
    assert [row for row in await sub.rows() if row["subscription"] == SUBSCRIPTION] == before
    assert len(new.enqueued) == 5
    assert len(sub.enqueued) == 5
    assert counts(await replay(new)) == ("finished", 0, 0, 5)


@pytest.mark.parametrize("again", [False, True])
async def test_what_was_handled_is_skipped_or_handled_again_as_asked(sub: Subscription, again: bool) -> None:
    done, dead, waiting = await came(sub, 3)
    await handled(sub, done)
    await sub.process(Handler.answering(422)).process(dead)
    assert counts(await replay(sub, again=again)) == ("finished", 0, int(again), 3 - again)
    due = set(await type(sub.inbox)(sub.pool, grace=timedelta(0)).overdue(SUBSCRIPTION, 10))
    assert due == ({done, waiting} if again else {waiting})
    assert await handled(sub, done) == [done] * again
    assert (await sub.row(dead))["dead_lettered_at"] is not None


async def test_archived_messages_are_handled_again_only_if_asked(sub: Subscription) -> None:
    [old] = await came(sub, 1)
    await handled(sub, old)
    insert = "INSERT INTO archived_messages (message_id, batch, subscription) VALUES (%s, 1, %s)"
    await sub.query(insert, old, SUBSCRIPTION)
    await sub.query("DELETE FROM inbox_messages")
    assert counts(await replay(sub)) == ("finished", 0, 0, 1)
    assert await sub.rows() == []
    assert counts(await replay(sub, again=True)) == ("finished", 1, 0, 0)
    assert await handled(sub, old) == [old]


async def test_a_key_a_type_and_a_time_narrow_it(sub: Subscription) -> None:
    await came(sub, 2, Relay_Partition_Key="a")
    early = datetime.now(UTC)
    await came(sub, 2, Relay_Partition_Key="b")
    await came(sub, 1, Relay_Partition_Key="a")
    late = datetime.now(UTC)
    await came(sub, 1, Relay_Partition_Key="a")
    for asked, expected in (
        ({"key": "a"}, 4),
        ({"event_type": "vibe_created"}, 6),
        ({"event_type": "other"}, 0),
        ({"since": early}, 4),
        ({"until": late}, 5),
        ({"since": early, "until": late, "key": "a"}, 1),
    ):
        await sub.query("DELETE FROM inbox_messages")
        assert counts(await replay(sub, **asked)) == ("finished", expected, 0, 0), asked


async def test_a_worker_that_dies_leaves_it_where_it_was(sub: Subscription) -> None:
    old = await came(sub, 6)
    await handled(sub, *old)
    id = await replays(sub).start(SUBSCRIPTION, BOB, **(ASKED | {"again": True, "rate": 2}))
    found = await replays(sub).take([SUBSCRIPTION])
    assert found is not None
    assert await replays(sub).take([SUBSCRIPTION]) is None

    async def die(_seconds: float) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await work(sub, sleep=die).run(found, lambda: True)
    [row] = await replays(sub).list(1, id)
    assert (row["state"], row["repeated"], row["position"], row["last_position"]) == ("running", 2, 2, 6)
    assert await handled(sub, *old) == old[:2]
    back = "claimed_until = now() - interval '1 s', position = 0, source = 'archive'"
    await sub.query(f"UPDATE inbox_replays SET {back}")
    while (found := await replays(sub).take([SUBSCRIPTION])) is not None:
        await work(sub, sleep=lambda _: asyncio.sleep(0)).run(found, lambda: True)
    assert await handled(sub, *old) == old[2:]


async def test_it_keeps_its_rate_and_stops_when_asked(sub: Subscription) -> None:
    await came(sub, 6)
    id = await replays(sub).start(SUBSCRIPTION, BOB, **(ASKED | {"rate": 2}))
    with pytest.raises(ReplayRunning):
        await replays(sub).start(SUBSCRIPTION, BOB, **ASKED)
    slept: list[float] = []

    async def stop(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            await replays(sub).stop(id, BOB)

    found = await replays(sub).take([SUBSCRIPTION])
    assert found is not None
    await work(sub, sleep=stop).run(found, lambda: True)
    assert all(0 <= it <= 1 for it in slept)
    [row] = await replays(sub).list(1, id)
    assert (row["state"], row["skipped"]) == ("stopped", 4)
    assert not await replays(sub).move(found, place(row), ReplayCounts())
    with pytest.raises(UnknownReplay):
        await replays(sub).stop(id, BOB)
    audit = await sub.query("SELECT action, note FROM audit_log ORDER BY id")
    assert [tuple(it.values()) for it in audit] == [
        ("inbox.replay", "new service"),
        ("inbox.stop-replay", "new service"),
    ]


def place(row: dict[str, Any]) -> ReplayPlace:
    return ReplayPlace(source=ReplaySource(row["source"]), position=row["position"])


async def test_what_the_stream_has_dropped_comes_from_the_outbox_in_its_place(sub: Subscription) -> None:
    insert = """
        INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, published_at,
                                   published_stream, published_seq, publish_attempts)
        SELECT id, 'vibe', '7', 'vibe_created', '{}', now(), %s, seq, 1
        FROM unnest(%s::uuid[], %s::bigint[]) AS given (id, seq)"""
    sent = [await sub.send() for _ in range(5)]
    await sub.query(insert, sub.stream, sent, [1, 2, 3, 4, 5])
    await sub.js.purge_stream(sub.stream, seq=4)
    assert counts(await replay(sub)) == ("finished", 5, 0, 0)
    rows = await sub.rows()
    assert [row["message_id"] for row in rows] == sent
    assert [row["stream_seq"] for row in rows] == [1, 2, 3, 4, 5]
    assert [(row["event_type"], row["partition_key"]) for row in rows[:3]] == [("vibe_created", "vibe:7")] * 3
    assert await handled(sub, *sent) == sent


async def test_a_large_payload_that_the_stream_has_dropped_stays_in_the_outbox(sub: Subscription) -> None:
    insert = """
        INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, published_at,
                                   published_stream, published_seq, publish_attempts)
        VALUES (%s, 'vibe', '7', 'vibe_created', jsonb_build_object('t', repeat('x', 300000)), now(), %s, 1, 1)"""
    sent = [await sub.send() for _ in range(2)]
    await sub.query(insert, sent[0], sub.stream)
    await sub.js.purge_stream(sub.stream, seq=2)
    kept = PublishedEvents(sub.pool.connection, KeptPayloads(sub.name, 262_144))
    id = await replays(sub).start(sub.subscription, BOB, **ASKED)
    found = await replays(sub).take([sub.subscription])
    assert found is not None
    assert found.id == id
    usual = work(sub)
    assert usual.producer is not None
    await replace(usual, producer=replace(usual.producer, events=kept)).run(found, lambda: True)
    [row] = [it for it in await sub.rows() if it["message_id"] == sent[0]]
    reference = Reference.of(row["headers"])
    assert reference is not None
    assert (reference.id, reference.size) == (sent[0], 300_009)
    assert len(row["body"]) < 2_000


async def test_messages_of_an_ordered_key_run_in_their_order(sub: Subscription) -> None:
    sub.keep_order()
    old = await came(sub, 4, Relay_Partition_Key="a")
    await handled(sub, *old)
    assert counts(await replay(sub, again=True)) == ("finished", 0, 4, 0)
    for id in reversed(old[1:]):
        assert await handled(sub, id) == []
    assert await handled(sub, *old) == old


# --- the faces ---


def test_the_command_line_starts_lists_and_stops(tmp_path: Path, database_url: str) -> None:
    shell, sea = Shell(tmp_path, database_url), ("--context", "sea")
    asked = ("inbox", "replay", "--subscription", SUBSCRIPTION, "--handled", "again", "--key", "a")
    assert "No such" not in shell("inbox", "replays", *sea)
    told = shell(*asked, "--since", "2h", "--note", "repaired", "--actor", "bob", *sea)
    assert told == "sea: replay 1 is running: relay inbox replays\n"
    assert "error REPLAY_RUNNING" in shell(*asked, *sea, status=1)
    unknown = ("inbox", "replay", "--subscription", "x", "--handled", "skip")
    assert "error INVALID_REQUEST" in shell(*unknown, *sea, status=1)
    [found] = shell.json("inbox", "replays", *sea)
    assert (found["state"], found["again"], found["key"], found["actor"]) == ("running", True, "a", "bob")
    assert "running" in shell("inbox", "replays", *sea)
    assert shell("inbox", "stop-replay", "1", *sea) == "sea: replay 1 is stopped\n"
    assert "error UNKNOWN_REPLAY" in shell("inbox", "stop-replay", "1", *sea, status=1)


async def test_the_api_starts_lists_and_stops(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer
) -> None:
    async with serving(configured(database_url, nats_server.url, valkey.url)) as api:
        asked = {"subscription": SUBSCRIPTION, "handled": "skip", "since": "6h", "rate": 7}
        assert await api.post("/contexts/sea/replays", asked, 202) == {"id": 1, "state": "running"}
        refused = await api.post("/contexts/sea/replays", asked, 409)
        assert refused["error"]["code"] == "REPLAY_RUNNING"
        [found] = await api.get("/contexts/sea/replays")
        assert (found["state"], found["rate"], found["again"]) == ("running", 7, False)
        assert await api.post("/contexts/sea/replays/1/stop", {}) == {"id": 1, "state": "stopped"}
        assert (await api.post("/contexts/sea/replays/1/stop", {}, 404))["error"]["code"] == "UNKNOWN_REPLAY"

        page = await api.client.get("/contexts/sea/replays")
        assert (page.status_code, "from_upstream" in page.text, "stopped" in page.text) == (200, True, True)
        asked = await api.client.get("/contexts/sea/replays/start", params={**asked, "handled": "again"})
        assert "Replay into the inbox of from_upstream?" in asked.text
