"""Ordered subscriptions: of a key only the head runs, and nothing runs that something lost could still precede."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.ordered_inbox import OrderedInboxAdapter
from relay.devstack import NatsServer
from relay.domain.reasons import code_of
from relay.domain.watermark import Watermark
from relay.ports import Delivery
from tests.integration.consuming import LEASE, SUBSCRIPTION, Handler, Subscription, inbox_row, subscribed

pytestmark = pytest.mark.anyio
NOW = timedelta(0)


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription.keep_order()


async def send(sub: Subscription, *keys: str) -> list[UUID]:
    return [await sub.send(Relay_Partition_Key=key) for key in keys]


async def received(sub: Subscription, *keys: str) -> list[UUID]:
    """Send messages and put them into the inbox in one batch."""
    sent = await send(sub, *keys)
    await sub.pull().accept(await sub.fetch())
    return sent


async def handle(sub: Subscription, message_id: UUID, *statuses: int, **options: Any) -> list[UUID]:
    """Process a message; returns what the handler was asked about."""
    handler = Handler.answering(*(statuses or (200,)))
    await sub.process(handler, **options).process(message_id)
    return [request.message_id for request in handler.requests]


async def sweep(sub: Subscription) -> set[UUID]:
    """What a sweep finds once everybody had time enough."""
    assert sub.order is not None
    impatient = type(sub.inbox)(sub.pool, grace=NOW)
    return set(await impatient.overdue(SUBSCRIPTION, 100))


async def mark(sub: Subscription) -> Watermark:
    assert sub.order is not None
    return await sub.order.watermark(SUBSCRIPTION, sub.stream)


# --- who may run ---


async def test_only_heads_are_enqueued_and_only_a_head_is_claimed(sub: Subscription) -> None:
    a1, a2, b1, a3, b2 = await received(sub, "a", "a", "b", "a", "b")
    assert sub.enqueued == [a1, b1]
    for waiting in (a2, a3, b2):
        assert await handle(sub, waiting) == []
    assert await sweep(sub) == {a1, b1}


async def test_messages_without_a_key_run_freely(sub: Subscription) -> None:
    sent = [await sub.received(), await sub.received()]
    assert sub.enqueued == sent
    for message_id in reversed(sent):
        assert await handle(sub, message_id) == [message_id]


async def test_who_finishes_a_head_enqueues_the_next_of_its_key(sub: Subscription) -> None:
    a1, a2, a3 = await received(sub, "a", "a", "a")
    for message_id in (a1, a2, a3):
        assert await handle(sub, message_id) == [message_id]
    assert sub.enqueued == [a1, a2, a3]


async def test_while_a_head_waits_for_its_next_attempt_its_followers_wait(sub: Subscription) -> None:
    a1, a2 = await received(sub, "a", "a")
    assert await handle(sub, a1, 503) == [a1]
    assert await handle(sub, a2) == []
    assert sub.enqueued == [a1]
    assert await sweep(sub) == set()


async def test_of_many_claims_at_once_one_message_of_a_key_is_taken(sub: Subscription) -> None:
    sent = await received(sub, *["a"] * 12)
    claims = await asyncio.gather(*(sub.inbox.claim(message_id, LEASE) for message_id in sent * 2))
    assert [claim.row.message_id for claim in claims if claim] == [sent[0]]


async def test_a_message_behind_one_that_ends_while_it_comes_in_is_enqueued(sub: Subscription) -> None:
    """Both look at the other too early; the second look of the pull job, after its commit, finds the head gone."""
    [a1] = await received(sub, "a")
    [a2] = await send(sub, "a")

    class Late(OrderedInboxAdapter):
        async def insert(self, rows: Any, *, lasting: bool = True) -> Any:
            inserted = await super().insert(rows)
            await sub.query("UPDATE inbox_messages SET processed_at = now() WHERE message_id = %s", a1)
            return inserted

    sub.enqueued.clear()
    await sub.pull(inbox=Late(sub.pool)).accept(await sub.fetch())
    assert sub.enqueued == [a2]


async def test_what_nobody_went_on_with_is_found_by_the_sweep(sub: Subscription) -> None:
    a1, a2, _ = await received(sub, "a", "a", "a")
    assert await handle(sub, a1) == [a1]
    await sub.query("UPDATE inbox_messages SET enqueued_at = NULL WHERE message_id = %s", a2)
    assert await sweep(sub) == {a2}


async def test_a_copy_further_down_the_stream_does_not_lose_its_place(sub: Subscription) -> None:
    a1, a2 = await received(sub, "a", "a")
    body = (await sub.js.get_msg(sub.stream, 1)).data
    await sub.send(body, Nats_Msg_Id=f"{a1}.1", Relay_Partition_Key="a")
    await sub.pull().accept(await sub.fetch())
    assert (await sub.row(a1))["stream_seq"] == 3
    assert await handle(sub, a2) == []
    assert await handle(sub, a1) == [a1]


async def test_a_subscription_that_gives_up_its_order_leaves_nothing_behind(sub: Subscription) -> None:
    _, a2 = await received(sub, "a", "a")
    sub.inbox, sub.order = PostgresInboxAdapter(sub.pool, grace=NOW), None
    assert a2 in await sub.inbox.overdue(SUBSCRIPTION, 10)
    assert await handle(sub, a2) == [a2]


async def test_all_that_waits_is_kept_from_redelivery(sub: Subscription) -> None:
    await received(sub, "a", "a", "a")
    told = [reply async for replies in sub.inbox.waiting(SUBSCRIPTION, 2) for reply in replies]
    assert len(set(told)) == 3


# --- what is not known to be complete ---


async def test_nothing_overtakes_a_delivery_that_went_down_with_a_worker(sub: Subscription) -> None:
    [a1] = await send(sub, "a")
    await sub.lose()
    a2, b1 = await received(sub, "a", "b")
    assert sub.enqueued == []
    assert await sweep(sub) == set()
    assert await handle(sub, a2) == await handle(sub, b1) == []
    assert await sub.recovery().recover() == 1
    assert (await mark(sub)) == Watermark(3, 3)
    assert await sweep(sub) == {a1, b1}
    assert [*await handle(sub, a1), *await handle(sub, a2)] == [a1, a2]


async def test_batches_that_overtake_each_other_run_in_order(sub: Subscription) -> None:
    [a1] = await send(sub, "a")
    first = await sub.fetch()
    [a2] = await send(sub, "a")
    await sub.pull().accept(await sub.fetch())
    assert (sub.enqueued, await handle(sub, a2)) == ([], [])
    await sub.pull().accept(first)
    assert sub.enqueued == [a1]
    assert [*await handle(sub, a1), *await handle(sub, a2)] == [a1, a2]


async def test_the_watermark_moves_with_the_rows_or_not_at_all(sub: Subscription) -> None:
    await received(sub, "a")
    before = await mark(sub)
    poison = inbox_row(2, stream=sub.stream, event_type="a\x00b")._replace(order_key="a", consumer_seq=2)
    with pytest.raises(Exception, match="cannot store"):
        await sub.inbox.insert([poison])
    assert await mark(sub) == before == Watermark(1, 1)


async def test_an_unreadable_message_is_head_of_its_key_too(sub: Subscription) -> None:
    bad = await sub.send(b"not json", Relay_Partition_Key="a")
    [a2] = await received(sub, "a")
    assert bad not in sub.enqueued
    [head] = sub.enqueued
    assert (await sub.row(head))["dead_letter_class"] == "poison"
    assert await handle(sub, a2) == []
    await handle(sub, head)
    assert await handle(sub, a2) == []  # it blocks, like any dead head


async def test_a_server_that_numbers_anew_is_noticed_before_a_number_is_believed(sub: Subscription) -> None:
    """As after a kill of nats-server: its numbers go back, and a batch is lost with a worker before the next."""
    await received(sub, *["x"] * 3)
    await sub.query("UPDATE inbox_watermarks SET consumer_seq = 5")  # it had come further, by redeliveries
    numbers = sub.numbers()
    assert numbers is not None
    await numbers.before_fetch()
    assert await mark(sub) == Watermark(3, 3)
    await send(sub, "a", "b")
    await sub.lose(2)
    _, _ = await received(sub, "a", "a")
    assert (await mark(sub)).stream_seq == 3
    assert await sub.recovery().recover() == 2
    assert await mark(sub) == Watermark(7, 7)


async def test_numbers_are_not_believed_when_the_connection_was_lost_on_the_way(sub: Subscription) -> None:
    await received(sub, "a")

    class Cut(NatsJetStreamConsumer):
        async def fetch(self, batch: int, wait: timedelta) -> Any:
            self._on_down()
            return await super().fetch(batch, wait)

    [a2] = await send(sub, "b")
    turns = iter([True, False])
    cut = Cut(sub.nats, stream=sub.stream, durable="down")
    await sub.pull(consumer=cut).run(lambda: next(turns))
    assert (await mark(sub)).consumer_seq is None
    assert await handle(sub, a2) == []
    await sub.recovery().recover()
    assert await sweep(sub) >= {a2}


async def test_a_consumer_that_was_in_use_before_is_compared_first(sub: Subscription) -> None:
    await sub.query("DELETE FROM inbox_watermarks")
    await received(sub, "a")
    await sub.query("UPDATE inbox_watermarks SET consumer_seq = 0, stream_seq = 0")
    [b1] = await received(sub, "b")
    assert await handle(sub, b1) == []
    await sub.recovery().recover()
    assert await mark(sub) == Watermark(2, 2)


async def test_the_watermark_follows_when_everything_is_acknowledged(sub: Subscription) -> None:
    [a1] = await received(sub, "a")
    await handle(sub, a1)
    await sub.acked()
    await sub.query("UPDATE inbox_watermarks SET consumer_seq = NULL, stream_seq = 0")
    assert await sub.recovery().recover() == 0
    assert await mark(sub) == Watermark(1, 1)


async def test_a_message_that_jetstream_gave_up_does_not_hold_the_watermark_for_ever(
    database_url: str, nats_server: NatsServer
) -> None:
    """Delivered once too often to workers that died, it is no longer pending, and the floor stays before it."""
    async with subscribed(database_url, nats_server.url, max_deliver=1, ack_wait=1) as sub:
        sub.keep_order()
        [a1] = await send(sub, "a")
        await sub.lose()
        await asyncio.sleep(1.2)  # the ack wait: nothing tells when it is over, as nothing is delivered again
        assert await sub.fetch() == []
        await sub.acked()
        await sub.recovery().recover()
        assert await sweep(sub) == {a1}


# --- other messages at the same place, and workers that die of a message ---


async def test_another_message_at_the_place_of_a_finished_one_is_taken_up_and_not_acknowledged(
    sub: Subscription,
) -> None:
    """The stream lost its end and gave the sequence out again; the new message was lost with a worker."""
    old = uuid4()
    row = inbox_row(1, message_id=old, stream=sub.stream, ack_subject=f"$JS.ACK.{sub.stream}.down.1.1.1.0.0")
    await sub.inbox.insert([row])
    await sub.query("UPDATE inbox_messages SET received_at = now() - interval '1 minute'")
    await sub.query("UPDATE inbox_messages SET processed_at = now() - interval '5 seconds'")
    new = await sub.send()
    await sub.lose()
    assert await sub.recovery().recover() == 1
    assert await sub.unacked() == 1
    assert sub.enqueued == [new]


async def test_a_message_that_kills_every_worker_is_exhausted_without_another_call(sub: Subscription) -> None:
    [a1] = await received(sub, "a")
    for _ in range(3):
        assert await sub.inbox.claim(a1, NOW, 3) is not None
    assert await handle(sub, a1, max_attempts=3) == []
    [letter] = await sub.dead_letters()
    assert (letter["class"], letter["attempts"]) == ("exhausted", 3)
    assert code_of(letter["reason"]) == "worker_died"
    assert (await sub.row(a1))["dead_lettered_at"] is not None


async def test_it_is_so_in_a_subscription_without_order_too(sub: Subscription) -> None:
    sub.inbox, sub.order = PostgresInboxAdapter(sub.pool), None
    message_id = await sub.received()
    for _ in range(3):
        assert await sub.inbox.claim(message_id, NOW, 3) is not None
    assert await handle(sub, message_id, max_attempts=3) == []
    assert [letter["class"] for letter in await sub.dead_letters()] == ["exhausted"]


async def test_a_body_that_names_another_message_than_its_header_is_poison(sub: Subscription) -> None:
    content = {"message_id": str(uuid4()), "event_type": "vibe_created", "event_version": 1, "payload": {}}
    await sub.send(json.dumps(content).encode())
    deliveries: list[Delivery] = [*await sub.fetch()]
    await sub.pull().accept(deliveries)
    [row] = await sub.rows()
    assert row["dead_letter_class"] == "poison"
    assert "[message_id]: contradicts what is known: the header Nats-Msg-Id differs" in row["dead_letter_reason"]
