"""What becomes of a key with a dead head: it stands still, is set aside, or goes on; and how operators decide."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from relay.adapters.postgres.incidents import PostgresParkedKeys
from relay.adapters.postgres.ordered_inbox import OrderedInboxAdapter
from relay.devstack import NatsServer
from relay.domain.operators import Outcome
from relay.domain.ordering import FailedHead
from tests.integration.consuming import SUBSCRIPTION, Handler
from tests.integration.incidents import ANN, Desk, at_the_desk
from tests.integration.test_cli_operating import Shell
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def desk(database_url: str, nats_server: NatsServer) -> AsyncIterator[Desk]:
    async with at_the_desk(database_url, nats_server.url) as desk:
        yield desk


async def received(desk: Desk, *keys: str) -> list[UUID]:
    sent = [await desk.sub.send(Relay_Partition_Key=key) for key in keys]
    await desk.sub.pull().accept(await desk.sub.fetch())
    return sent


async def handle(desk: Desk, message_id: UUID, status: int = 200) -> bool:
    """Process a message; returns whether its handler was asked."""
    handler = Handler.answering(status)
    await desk.sub.process(handler).process(message_id)
    return bool(handler.requests)


async def failed(desk: Desk, policy: FailedHead) -> list[UUID]:
    """Three messages of the key a, the first of them dead and recorded as incident 1, and one of b."""
    desk.sub.keep_order(policy)
    sent = await received(desk, "a", "a", "a", "b")
    assert await handle(desk, sent[0], 422)
    await desk.record().run()
    assert [row["id"] for row in await desk.rows()] == [1]
    return sent


async def sweep(desk: Desk) -> set[UUID]:
    return set(await OrderedInboxAdapter(desk.sub.pool, grace=timedelta(0)).overdue(SUBSCRIPTION, 10))


async def release(desk: Desk, *keys: str) -> Outcome:
    return await PostgresParkedKeys(desk.sub.pool.connection).release(keys or None, None, ANN)


async def unacked(desk: Desk, count: int) -> None:
    async def so_many() -> bool:
        return await desk.sub.unacked() == count

    await eventually(f"{count} are unacknowledged", so_many)


# --- block ---


async def test_a_blocked_key_stands_still_unacknowledged_and_others_go_on(desk: Desk) -> None:
    _, a2, a3, b1 = await failed(desk, "block")
    assert not await handle(desk, a2)
    assert not await handle(desk, a3)
    assert await handle(desk, b1)
    assert await sweep(desk) == set()
    await unacked(desk, 2)
    assert await desk.sub.inbox.due(SUBSCRIPTION, 10) == 2


async def test_a_requeued_head_runs_before_its_followers(desk: Desk) -> None:
    a1, a2, _, b1 = await failed(desk, "block")
    await handle(desk, b1)
    await desk.incidents.requeue([1], ANN)
    assert not await handle(desk, a2)
    assert await sweep(desk) == {a1}
    assert await handle(desk, a1)
    assert desk.sub.enqueued[-1] == a2
    assert await handle(desk, a2)


@pytest.mark.parametrize("action", ["discard", "resolve"])
@pytest.mark.parametrize("policy", ["block", "park"])
async def test_a_head_that_is_given_up_lets_its_key_go_on_without_it(
    desk: Desk, action: str, policy: FailedHead
) -> None:
    _, a2, a3, b1 = await failed(desk, policy)
    await handle(desk, b1)
    await getattr(desk.incidents, action)([1], ANN)
    assert await sweep(desk) == {a2}
    assert not await handle(desk, a3)
    assert await handle(desk, a2)
    assert await handle(desk, a3)


async def test_a_head_that_was_given_up_and_is_requeued_after_all_is_the_head_again(desk: Desk) -> None:
    a1, a2, _, _ = await failed(desk, "block")
    await desk.incidents.discard([1], ANN)
    await desk.incidents.requeue([1], ANN)
    assert not await handle(desk, a2)
    assert await handle(desk, a1)


# --- skip ---


async def test_a_key_steps_over_its_dead_head(desk: Desk) -> None:
    _, a2, a3, _ = await failed(desk, "skip")
    assert a2 in desk.sub.enqueued
    assert not await handle(desk, a3)
    assert await handle(desk, a2)
    assert await handle(desk, a3)


async def test_a_requeued_message_waits_until_the_one_that_went_on_is_done(desk: Desk) -> None:
    a1, a2, a3, _ = await failed(desk, "skip")
    claim = await desk.sub.inbox.claim(a2, timedelta(seconds=30))
    assert claim is not None
    await desk.incidents.requeue([1], ANN)
    assert not await handle(desk, a1)
    assert await desk.sub.inbox.release(claim, timedelta(0))
    assert not await handle(desk, a2)
    assert [await handle(desk, a1), await handle(desk, a2), await handle(desk, a3)] == [True] * 3


# --- park ---


async def test_a_parked_key_is_acknowledged_and_counts_for_nothing(desk: Desk) -> None:
    _, a2, a3, b1 = await failed(desk, "park")
    await unacked(desk, 1)
    assert await handle(desk, b1)
    await desk.sub.acked()
    assert [await handle(desk, a2), await handle(desk, a3)] == [False, False]
    assert await sweep(desk) == set()
    assert await desk.sub.inbox.due(SUBSCRIPTION, 10) == 0
    assert [replies async for replies in desk.sub.inbox.waiting(SUBSCRIPTION, 10)] == [[]]


async def test_new_messages_join_their_parked_key(desk: Desk) -> None:
    await failed(desk, "park")
    before = list(desk.sub.enqueued)
    [a4] = await received(desk, "a")
    await unacked(desk, 1)  # b's
    assert desk.sub.enqueued == before
    assert not await handle(desk, a4)
    [parked] = await PostgresParkedKeys(desk.sub.pool.connection).list(10, 0)
    assert (parked["key"], parked["waiting"]) == ("a", 3)


async def test_an_acknowledgement_that_was_lost_while_parking_is_sent_again(desk: Desk) -> None:
    desk.sub.keep_order("park")
    a1, _, _ = await received(desk, "a", "a", "a")
    desk.sub.consumer, real = desk.sub.lossy(), desk.sub.consumer
    await handle(desk, a1, 422)
    assert await desk.sub.unacked() == 3
    desk.sub.consumer = real
    await desk.sub.query("UPDATE inbox_messages SET dead_lettered_at = now() - interval '1 minute' "
                         "WHERE dead_lettered_at IS NOT NULL")  # fmt: skip
    await desk.sub.recovery().recover()
    await unacked(desk, 0)


async def test_a_released_key_runs_in_order_its_dead_head_first(desk: Desk) -> None:
    a1, a2, a3, b1 = await failed(desk, "park")
    await handle(desk, b1)
    [a4] = await received(desk, "a")
    outcome = await release(desk, "a", "nothing")
    assert outcome.done == (f"{SUBSCRIPTION}/a",)
    assert [(key, error.code) for key, error in outcome.refused] == [("nothing", "NOT_PARKED")]
    assert [row["status"] for row in await desk.rows()] == ["requeued"]
    done = [(row["action"], row["ids"]) for row in await desk.audit()]
    assert done == [("dlq.requeue", ["1"]), ("parked.release", [f"{SUBSCRIPTION}/a"])]
    assert await sweep(desk) == {a1}
    assert [await handle(desk, id) for id in (a2, a1, a3, a2, a3, a4)] == [False, True, False, True, True, True]


async def test_a_head_that_fails_again_is_parked_again(desk: Desk) -> None:
    a1, a2, _, _ = await failed(desk, "park")
    await release(desk)
    assert await handle(desk, a1, 422)
    assert not await handle(desk, a2)
    [parked] = await PostgresParkedKeys(desk.sub.pool.connection).list(10, 0)
    assert (parked["key"], parked["head"], parked["waiting"]) == ("a", a1, 2)
    await desk.record().run()
    assert (await release(desk)).done == (f"{SUBSCRIPTION}/a",)
    assert [await handle(desk, a1), await handle(desk, a2)] == [True, True]


async def test_a_requeue_by_incident_releases_the_key_too(desk: Desk) -> None:
    a1, a2, _, b1 = await failed(desk, "park")
    await handle(desk, b1)
    await desk.incidents.requeue([1], ANN)
    assert await PostgresParkedKeys(desk.sub.pool.connection).list(10, 0) == []
    assert await sweep(desk) == {a1}
    assert await handle(desk, a1)
    assert desk.sub.enqueued[-1] == a2


async def test_what_cannot_be_released_yet_or_ever_says_why(desk: Desk) -> None:
    desk.sub.keep_order("park")
    [a1] = await received(desk, "a")
    await handle(desk, a1, 422)
    await desk.sub.send(b"not json", Relay_Partition_Key="b")
    await desk.sub.pull().accept(await desk.sub.fetch())
    await handle(desk, desk.sub.enqueued[-1])
    codes = [error.code for _, error in (await release(desk)).refused]
    assert codes == ["NOT_REQUEUEABLE", "UNREADABLE_MESSAGE"]
    assert len(await PostgresParkedKeys(desk.sub.pool.connection).list(10, 0)) == 2
    assert await desk.audit() == []


# --- the command line ---


async def test_the_command_line_lists_and_releases(desk: Desk, database_url: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, database_url)
    sea = ("--context", "sea")
    a1, *_ = await failed(desk, "park")
    assert "DATABASE_UNREACHABLE: context quiet" in shell("parked", "list", status=1)
    [found] = json.loads(shell("parked", "list", "--json", *sea))
    assert found.pop("since").endswith("Z")
    assert found == {
        "context": "sea", "subscription": SUBSCRIPTION, "key": "a", "head": str(a1),
        "reason": "HTTP 422: why", "waiting": 2,
    }  # fmt: skip
    assert "why" in shell("parked", "list", *sea)
    assert "INVALID_REQUEST" in shell("parked", "release", status=1)
    assert "error NOT_PARKED: x: is not parked" in shell("parked", "release", "x", status=1)
    assert shell("parked", "release", "--all", "--actor", "bob", "--note", "mended") == "sea: released 1\n"
    assert shell("parked", "list", *sea) == "No parked keys in sea.\n"
    assert (await desk.audit())[-1]["actor"] == "bob"
