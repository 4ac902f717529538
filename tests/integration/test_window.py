"""JetStream's window: failing messages leave it before it is full, and are as safe as before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from consumer.window import Window, WindowTimes
from relay.devstack import NatsServer
from relay.domain.facts import MessagesLetGo
from relay.ports import Delivery
from tests.integration.consuming import SUBSCRIPTION, Handler, Subscription, subscribed
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

SIZE = 10
HALF = SIZE // 2


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url, max_ack_pending=SIZE) as subscription:
        yield subscription


def window(sub: Subscription, **parts: Any) -> Window:
    return Window(
        context=sub.context,
        subscription=SUBSCRIPTION,
        inbox=sub.inbox,
        consumer=parts.pop("consumer", sub.consumer),
        facts=sub.facts.append,
        **parts,
    )


async def failed(sub: Subscription, count: int, **parts: Any) -> list[UUID]:
    """Send messages and have each fail once, as far as the window lets them come."""
    sent = [await sub.send() for _ in range(count)]
    await taken(sub, **parts)
    return sent


async def taken(sub: Subscription, **parts: Any) -> None:
    """Pull, and fail what comes, until nothing comes any more."""
    pull, work = sub.pull(**parts), sub.process(Handler.answering(503), **parts)
    while deliveries := await sub.fetch():
        await pull.accept(deliveries)
        for id in sub.enqueued[:]:
            await work.process(id)
        sub.enqueued.clear()
        if (let := parts.get("window")) is not None:
            await let.relieve()


async def holds(sub: Subscription, places: int) -> None:
    """Wait until so many places of the window are taken: an acknowledgement has no answer to wait for."""

    async def taken_up() -> bool:
        return await sub.unacked() == places

    await eventually(f"{places} places are taken", taken_up)


async def let_go(sub: Subscription) -> list[UUID]:
    rows = await sub.query("SELECT message_id FROM inbox_messages WHERE let_go_at IS NOT NULL ORDER BY stream_seq")
    return [row["message_id"] for row in rows]


async def test_up_to_the_bound_a_failing_message_is_not_acknowledged(sub: Subscription) -> None:
    """POL-047-007."""
    await failed(sub, HALF, window=window(sub))
    await window(sub).relieve()
    await sub.recovery(window=window(sub)).recover()
    assert (await sub.unacked(), await let_go(sub)) == (HALF, [])


async def test_the_oldest_above_the_bound_leave_and_others_come(sub: Subscription) -> None:
    sent = await failed(sub, 3 * SIZE, window=window(sub))
    assert len(await sub.rows()) == 3 * SIZE
    assert await let_go(sub) == sent[:-HALF]
    await holds(sub, HALF)
    assert sum(it.count for it in sub.facts if isinstance(it, MessagesLetGo)) == 3 * SIZE - HALF


async def test_failures_in_a_process_make_room_without_anybody_asking(sub: Subscription) -> None:
    ours = window(sub, times=WindowTimes(pause=0.0))
    await failed(sub, SIZE, window=ours)
    await ours.end()
    await holds(sub, HALF)


async def test_signals_are_sent_only_for_those_that_hold_a_place(sub: Subscription) -> None:
    sent = await failed(sub, 3 * SIZE, window=window(sub))
    kept = [reply async for page in sub.inbox.waiting(SUBSCRIPTION, 1_000) for reply in page]
    rows = {row["message_id"]: row["ack_subject"] for row in await sub.rows()}
    assert sorted(kept) == sorted(rows[id] for id in sent[-HALF:])


async def test_a_redelivery_of_one_that_left_is_no_new_message_and_leaves_again(sub: Subscription) -> None:
    sent = await failed(sub, SIZE, window=window(sub, consumer=sub.lossy()))
    assert await sub.unacked() == SIZE
    before = await sub.row(sent[0])
    await sub.consumer.nak([before["ack_subject"]], timedelta())

    async def comes_again() -> list[Delivery]:
        """On a slow machine others may be delivered again as well."""
        return [it for it in await sub.fetch() if it.stream_seq == before["stream_seq"]]

    again = await eventually("it is delivered again", comes_again)
    assert await sub.pull().accept(again) == 0
    await holds(sub, SIZE - 1)
    after = await sub.row(sent[0])
    assert after["ack_subject"] != before["ack_subject"]
    assert [after[it] for it in ("attempts", "let_go_at")] == [before[it] for it in ("attempts", "let_go_at")]


async def test_a_lost_acknowledgement_is_sent_again(sub: Subscription) -> None:
    await failed(sub, SIZE, window=window(sub, consumer=sub.lossy()))
    await sub.query("UPDATE inbox_messages SET let_go_at = let_go_at - interval '2 seconds'")
    await sub.recovery(window=window(sub)).recover()
    await holds(sub, HALF)


@pytest.mark.parametrize(("size", "kept"), [(16, 8), (2, 1), (1, 0), (-1, 10)])
async def test_the_bound_follows_the_server(sub: Subscription, size: int, kept: int) -> None:
    """An operator changes the consumer, on the server alone."""
    await failed(sub, SIZE)
    info = await sub.js.consumer_info(sub.stream, "down")
    await sub.js.add_consumer(sub.stream, replace(info.config, max_ack_pending=size))
    await window(sub).relieve()
    await holds(sub, kept)


async def test_while_it_is_kept_everything_keeps_its_place(sub: Subscription) -> None:
    await failed(sub, SIZE)
    assert await window(sub, kept=lambda: True).relieve() == 0
    assert await sub.unacked() == SIZE


@pytest.mark.parametrize("several", [2])
async def test_several_processes_share_the_bound(sub: Subscription, several: int) -> None:
    await failed(sub, SIZE)
    both = [window(sub) for _ in range(several)]
    for one in both:
        await one.relieve()
    await holds(sub, HALF)


@pytest.mark.parametrize("state", ["retried", "dead"])
async def test_what_left_the_window_ends_as_any_other(sub: Subscription, state: str) -> None:
    sent = await failed(sub, SIZE, window=window(sub))
    await sub.query("UPDATE inbox_messages SET next_attempt_at = now()")
    work = sub.process(Handler.answering(200 if state == "retried" else 422))
    for id in sent:
        await work.process(id)
    await sub.acked()
    rows = await sub.rows()
    assert {row["attempts"] for row in rows} == {2}
    ended = "processed_at" if state == "retried" else "dead_lettered_at"
    assert all(row[ended] for row in rows)
    assert len(await sub.dead_letters()) == (0 if state == "retried" else SIZE)


async def test_calls_that_hang_give_way_only_when_the_window_is_full(sub: Subscription) -> None:
    ids = [await sub.send() for _ in range(SIZE)]
    pull = sub.pull()
    await pull.accept(await sub.fetch())
    for id in ids:
        assert await sub.inbox.claim(id, timedelta(minutes=1)) is not None
    await sub.query("UPDATE inbox_messages SET enqueued_at = enqueued_at - interval '1 minute'")
    ours = window(sub)
    assert await ours.relieve() == 0
    await ours.seen(await sub.consumer.state())
    await holds(sub, HALF)


@pytest.mark.parametrize("failed_head", ["block", "park", "skip"])
@pytest.mark.parametrize("status", [503, 422])
async def test_what_waits_behind_a_failed_head_leaves(sub: Subscription, failed_head: Any, status: int) -> None:
    sub.keep_order(failed_head)
    ours = window(sub)
    head = await sub.received(Relay_Partition_Key="k")
    await sub.process(Handler.answering(status)).process(head)
    await sub.query(
        "UPDATE inbox_messages SET enqueued_at = now() + interval '1 hour'" if status == 503 else "SELECT 1"
    )
    for _ in range(2 * SIZE):
        await sub.send(Relay_Partition_Key="k")
    other = await sub.send(Relay_Partition_Key="other")
    pull, work = sub.pull(window=ours), sub.process(Handler.answering(200))
    while deliveries := await sub.fetch():
        await pull.accept(deliveries)
        for id in sub.enqueued[:]:
            await work.process(id)
        await ours.relieve()
    assert (await sub.row(other))["processed_at"] is not None


async def test_what_waits_behind_a_healthy_head_keeps_its_place(sub: Subscription) -> None:
    """A busy key is no failure: then JetStream keeps the rest."""
    sub.keep_order()
    for _ in range(2 * SIZE):
        await sub.send(Relay_Partition_Key="k")
    await sub.pull().accept(await sub.fetch())
    ours = window(sub)
    await ours.relieve()
    await ours.seen(await sub.consumer.state())
    assert (await sub.unacked(), len(await sub.rows())) == (SIZE, SIZE)
