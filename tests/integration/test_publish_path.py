"""CMD-050 when nothing is wrong but the timing: once, in order per key, recorded in the ledger."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from relay import Event
from relay.adapters.postgres.sql import statement
from relay.commands.publish import PublishOutboxEvents
from relay.domain.errors import DatabaseUnreachable, NotPublishable
from relay.domain.facts import OutboxEventsPublished
from relay.domain.ordering import Shard
from relay.domain.policies import Published
from tests.integration.publishing import ALL, DEADLINE, Relay, event, outbox_rows, query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


def hot_keys(count: int, keys: int) -> list[Event]:
    """Events over a few keys, every tenth without one."""
    return [
        event(f"v{number % keys}", payload={"n": number}, **({"partition_key": None} if number % 10 == 0 else {}))
        for number in range(count)
    ]


def check_ledger(relay: Relay, stored: list[str]) -> None:
    """Each row is published once and points at its message; within a key the stream follows the outbox."""
    rows = outbox_rows(relay.url)
    assert sorted(stored) == sorted(str(row["id"]) for row in rows)
    by_key = defaultdict(list)
    for row in rows:
        assert stored[row["published_seq"] - 1] == str(row["id"])
        assert (row["published_stream"], row["publish_error"], row["dead_at"]) == (relay.stream, None, None)
        if row["partition_key"]:
            by_key[row["partition_key"]].append(row["published_seq"])
    assert all(seqs == sorted(seqs) for seqs in by_key.values())


def not_twice(relay: Relay) -> None:
    """No event left twice: the stream would hide it, the ledger does not."""
    assert {(row["publish_attempts"], row["published_duplicate"]) for row in outbox_rows(relay.url)} == {
        (1, False)
    }


@asynccontextmanager
async def holding(relay: Relay, batch_size: int) -> AsyncIterator[asyncio.Event]:
    """A drain that stops inside of its first claim until the event is set."""
    go_on, inside = asyncio.Event(), asyncio.Event()

    async def stop(_: Any) -> None:
        inside.set()
        await asyncio.wait_for(go_on.wait(), DEADLINE)

    drain = asyncio.create_task(relay.command(batch_size=batch_size, claimed=stop).drain(ALL))
    await asyncio.wait_for(inside.wait(), DEADLINE)
    yield go_on
    go_on.set()
    await drain


async def test_a_drain_publishes_everything_once_in_order_and_keeps_the_ledger(relay: Relay) -> None:
    await relay.create_stream()
    relay.add(*hot_keys(1_000, 5))
    started = datetime.now(UTC)
    assert await relay.command(batch_size=100).drain(ALL) == 1_000
    check_ledger(relay, await relay.ids())
    not_twice(relay)
    assert all(started <= row["published_at"] <= datetime.now(UTC) for row in outbox_rows(relay.url))
    assert await relay.command().drain(ALL) == 0


async def test_a_message_carries_the_event(relay: Relay) -> None:
    await relay.create_stream()
    correlation, cause = uuid4(), uuid4()
    values: dict[str, Any] = {
        "event_version": 3,
        "payload": {"title": "Grüße", "n": 1},
        "correlation_id": correlation,
        "causation_id": cause,
        "headers": {"Actor-Id": "ann"},
        "occurred_at": datetime(2026, 1, 2, 3, 4, 5, 678, UTC),
    }
    elsewhere = f"{relay.context}.event.elsewhere"
    first, second = relay.add(event("v/ü", **values), event(partition_key=None, topic=elsewhere))
    await relay.command().drain(ALL)
    [message, other] = await relay.messages()
    [body, _] = await relay.bodies()
    assert message.subject == f"{relay.context}.event.vibe_created.v3"
    assert message.headers == {
        "Nats-Msg-Id": str(first),
        "Relay-Partition-Key": "vibe:v/%C3%BC",
        "Actor-Id": "ann",
    }
    assert body == {
        "message_id": str(first),
        "subject": message.subject,
        "event_type": "vibe_created",
        "event_version": 3,
        "occurred_at": "2026-01-02T03:04:05.000678Z",
        "correlation_id": str(correlation),
        "causation_id": str(cause),
        "payload": {"title": "Grüße", "n": 1},
    }
    # Its subject does not say what it is.
    assert (other.subject, other.headers) == (
        elsewhere,
        {"Nats-Msg-Id": str(second), "Relay-Event-Type": "vibe_created", "Relay-Event-Version": "1"},
    )


async def test_what_was_published_is_stated_as_a_fact(relay: Relay) -> None:
    await relay.create_stream()
    [event_id] = relay.add(event())
    await relay.command().drain(ALL)
    [fact] = relay.facts
    [row] = outbox_rows(relay.url)
    assert isinstance(fact, OutboxEventsPublished)
    assert (fact.context, fact.duplicates) == (relay.context, 0)
    [published] = fact.events
    subject = f"{relay.context}.event.vibe_created.v1"
    assert published == (str(event_id), "vibe_created", subject, row["published_at"], None)


async def test_an_uncommitted_or_rolled_back_event_is_not_published(relay: Relay) -> None:
    await relay.create_stream()
    async with relay.pool.connection() as connection, connection.transaction(force_rollback=True):
        await relay.outbox.add(connection, event())
        assert await relay.command().drain(ALL) == 0
    assert await relay.command().drain(ALL) == 0
    assert await relay.ids() == []


async def test_shards_share_the_keys_out(relay: Relay) -> None:
    await relay.create_stream()
    relay.add(*[event(f"v{number}") for number in range(200)])
    published = [await relay.command(batch_size=7).drain(Shard(index, 5)) for index in range(5)]
    assert sum(published) == 200
    assert min(published) > 0
    check_ledger(relay, await relay.ids())
    not_twice(relay)


# --- side by side ---


async def test_while_a_drain_holds_its_lanes_another_takes_none_of_their_events(relay: Relay) -> None:
    await relay.create_stream()
    unordered = [event(partition_key=None) for _ in range(3)]
    relay.add(*[event("v1", payload={"n": number}) for number in range(4)], *unordered)
    # One of the key and one unordered event: lanes give the same share of a batch.
    async with holding(relay, batch_size=2):
        assert await relay.command().drain(ALL) == 2
        assert sorted(row["partition_key"] for row in relay.unpublished()) == ["", *["vibe:v1"] * 4]
    check_ledger(relay, await relay.ids())
    not_twice(relay)


@pytest.mark.parametrize("claims", [0, 1], ids=["first claim", "later claim"])
async def test_of_lanes_that_others_hold_nothing_is_claimed_whatever_is_foreseen(
    relay: Relay, claims: int
) -> None:
    """From the second claim on, lanes are locked and events are claimed in one round trip."""
    await relay.create_stream()
    command = relay.command()
    for _ in range(claims):
        await command.drain(ALL)
    with psycopg.connect(relay.url) as other:
        held = Shard(0, 2).lanes
        other.execute(statement("outbox/lock_lanes"), {"lanes": held})
        relay.add(*[event(f"v{number}") for number in range(40)])
        published = await command.drain(ALL)
        left = {lane_of(relay.url, row["partition_key"]) for row in relay.unpublished()}
        assert 0 < published < 40
        assert left <= set(held)
    await relay.drained(command)
    check_ledger(relay, await relay.ids())
    not_twice(relay)


def lane_of(url: str, key: str) -> int:
    [row] = query(url, "SELECT relay_lane(%s) AS lane", key)
    return int(row["lane"])


async def test_drains_at_once_publish_everything_once_and_in_order(relay: Relay) -> None:
    await relay.create_stream()
    async with Relay(relay.url, relay.nats_url, relay.context) as other:
        relay.add(*hot_keys(600, 12))
        shards = [ALL, ALL, Shard(0, 2), Shard(1, 2)]
        commands = [owner.command(batch_size=10) for owner in (relay, other, relay, other)]

        async def work(command: PublishOutboxEvents, shard: Shard) -> None:
            while relay.unpublished():
                await command.drain(shard)

        await asyncio.gather(*map(work, commands, shards))
    check_ledger(relay, await relay.ids())
    not_twice(relay)


async def test_drains_that_disagree_on_the_number_of_shards_publish_everything_once_and_in_order(
    relay: Relay,
) -> None:
    """As when a worker joins: for a moment some jobs are of the former number and some of the new one."""
    await relay.create_stream()
    shards = [Shard(part, count) for count in (2, 3) for part in range(count)]
    relay.add(*hot_keys(600, 12))

    async def drain(shard: Shard) -> int:
        return await relay.command(batch_size=10).drain(shard)

    published = 0
    async with asyncio.timeout(DEADLINE):
        while published < 600:
            published += sum(await asyncio.gather(*map(drain, shards)))
    check_ledger(relay, await relay.ids())
    not_twice(relay)


# --- ended between the broker's answer and the commit ---


class Crash(Exception):
    """The process ends here."""


async def crash(_: Any) -> None:
    raise Crash


async def terminate(claim: Any) -> None:
    query(claim.conn.info.dsn, "SELECT pg_terminate_backend(%s)", claim.conn.info.backend_pid)


async def test_a_batch_is_marked_although_its_connection_has_lost_what_was_prepared(relay: Relay) -> None:
    """The driver deallocates every statement after some rollbacks."""
    await relay.create_stream()
    lose = ["SELECT 1", "DEALLOCATE ALL"]

    async def lost(claim: Any) -> None:
        await claim.conn.execute(lose.pop(0))

    command = relay.command(claimed=lost)
    for _ in range(2):
        relay.add(event())
        assert await command.drain(ALL) == 1
    assert lose == []
    assert relay.unpublished() == []
    assert len(await relay.messages()) == 2


@pytest.mark.parametrize(("fault", "error"), [(crash, Crash), (terminate, DatabaseUnreachable)])
async def test_what_was_stored_but_not_recorded_is_published_again_and_stored_once(
    relay: Relay, fault: Any, error: type[Exception]
) -> None:
    await relay.create_stream()
    relay.add(*hot_keys(20, 3))
    with pytest.raises(error):
        await relay.command(settled=fault).drain(ALL)
    assert len(await relay.ids()) == len(relay.unpublished()) == 20
    assert relay.facts == []
    relay.add(*hot_keys(20, 3))
    assert await relay.command().drain(ALL) == 40
    check_ledger(relay, await relay.ids())
    assert [row["published_duplicate"] for row in outbox_rows(relay.url)] == [True] * 20 + [False] * 20
    [fact] = relay.facts
    assert isinstance(fact, OutboxEventsPublished)
    assert fact.duplicates == 20


# --- one event by its id ---


async def refused(command: PublishOutboxEvents, event_id: UUID) -> str:
    with pytest.raises(NotPublishable) as caught:
        await command.publish(event_id)
    return str(caught.value)


async def test_one_event_can_be_published_by_its_id(relay: Relay) -> None:
    await relay.create_stream()
    first, second = relay.add(event("v1"), event("v2"))
    published = await relay.command().publish(second)
    assert published._replace(seconds=0.0) == Published(relay.stream, 1)
    assert published.seconds > 0
    assert [row["id"] for row in relay.unpublished()] == [first]
    assert "published" in await refused(relay.command(), second)
    assert "unknown" in await refused(relay.command(), uuid4())


async def test_one_event_is_not_published_ahead_of_an_earlier_one_of_its_key(relay: Relay) -> None:
    await relay.create_stream()
    first, second = relay.add(event("v1"), event("v1"))
    assert "earlier one of its key" in await refused(relay.command(), second)
    await relay.command().publish(first)
    await relay.command().publish(second)
    assert await relay.ids() == [str(first), str(second)]


async def test_a_delayed_event_is_published_early_by_its_id_and_holds_nobody(relay: Relay) -> None:
    await relay.create_stream()
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    first, second = relay.add(event("v1", available_at=tomorrow), event("v1"))
    await relay.command().publish(second)
    await relay.command().publish(first)
    assert await relay.ids() == [str(second), str(first)]


async def test_publishing_one_event_waits_for_the_drain_that_holds_its_lane(relay: Relay) -> None:
    await relay.create_stream()
    first, second = relay.add(event("v1"), event("v1"))
    async with holding(relay, batch_size=2):
        attempt = asyncio.create_task(refused(relay.command(), second))
        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
        await eventually("it waits", lambda: query(relay.url, waiting) or attempt.done())
        assert not attempt.done()
    assert "published" in await attempt
    assert await relay.ids() == [str(first), str(second)]
    not_twice(relay)


async def test_an_event_that_somebody_has_locked_holds_its_key_back_and_no_other(relay: Relay) -> None:
    await relay.create_stream()
    head, follower, other = relay.add(event("v1"), event("v1"), event("v2"))
    async with await psycopg.AsyncConnection.connect(relay.url) as operator:
        await operator.execute("SELECT 1 FROM outbox_events WHERE id = %s FOR UPDATE", [head])
        await relay.command().drain(ALL)
        assert await relay.ids() == [str(other)]
    await relay.command().drain(ALL)
    assert await relay.ids() == [str(other), str(head), str(follower)]
