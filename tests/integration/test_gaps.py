"""Messages past max_deliver: JetStream forgets them, and each is handled or a dead letter all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from nats.js.api import ConsumerConfig

from consumer.pull import PullTimes
from relay.adapters.jetstream.topology import ensure
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.devstack import NatsServer
from relay.domain.errors import DatabaseUnreachable
from relay.domain.facts import DeliveryExhausted
from relay.domain.topology import RELAY_ADVISORIES
from relay.ports import InboxRow, Inserted
from tests.integration.consuming import SUBSCRIPTION, Handler, Subscription, subscribed
from tests.integration.giving_up import about, advisories, given_up, nothing_left
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url, max_deliver=1) as subscription:
        subscription.recovery_limits = replace(subscription.recovery_limits, wait=timedelta(milliseconds=300))
        await ensure(subscription.js, [RELAY_ADVISORIES], [about(subscription)])
        yield subscription


async def rescue(sub: Subscription) -> int:
    return await sub.recovery().rescue(advisories(sub))


async def handled(sub: Subscription, *message_ids: UUID, status: int = 200) -> list[UUID]:
    """Process messages; returns what the handler was asked about."""
    handler = Handler.answering(status)
    for message_id in message_ids:
        await sub.process(handler).process(message_id)
    return [request.message_id for request in handler.requests]


async def floor_is(sub: Subscription, seq: int) -> None:
    async def there() -> bool:
        return (await sub.consumer.state()).ack_floor == seq

    await eventually(f"the floor is {seq}", there)


# --- why the advisories are needed (docs/decisions/0015) ---


@pytest.mark.parametrize("deliveries", [1, 2])
async def test_the_floor_passes_over_a_message_that_jetstream_gave_up(sub: Subscription, deliveries: int) -> None:
    """Should the server ever do otherwise, the advisories may be needless."""
    lost = await sub.send()
    await given_up(sub, deliveries=deliveries)
    state = await sub.consumer.state()
    assert (state.ack_floor, state.delivered, state.pending) == (0, 1, 0)
    # A made-up acknowledgement does not move the floor: "ack_floor < delivered" would not end.
    await sub.consumer.ack([f"$JS.ACK.{sub.stream}.down.1.1.1.0.0"])
    assert await sub.unacked() == 0
    assert (await sub.consumer.state()).ack_floor == 0
    # Another message's acknowledgement moves it over the lost one: "ack_floor = delivered" tells nothing.
    await handled(sub, await sub.received())
    await floor_is(sub, 2)
    info = await sub.js.consumer_info(sub.stream, "down")
    assert (info.num_ack_pending, info.num_redelivered) == (0, 0)
    assert await sub.recovery().recover() == 0
    assert await rescue(sub) == 1
    assert sub.enqueued[-1] == lost


# --- what is promised ---


@pytest.mark.parametrize("settle", ["handler", "inbox"])
@pytest.mark.parametrize(("status", "ended"), [(200, "processed_at"), (422, "dead_lettered_at")])
async def test_a_message_that_jetstream_gave_up_is_handled_or_a_dead_letter(
    sub: Subscription, settle: str, status: int, ended: str
) -> None:
    sub.settle = settle
    lost = await sub.send()
    await given_up(sub)
    assert await rescue(sub) == 1
    assert sub.facts[-1] == DeliveryExhausted(context=sub.context, subscription=SUBSCRIPTION, stream_seq=1)
    assert await handled(sub, lost, status=status) == [lost]
    assert (await sub.row(lost))[ended] is not None
    await nothing_left(sub)
    assert await rescue(sub) == 0


async def test_one_in_the_middle_of_others_is_handled(sub: Subscription) -> None:
    first = await sub.received()
    await handled(sub, first)
    await floor_is(sub, 1)
    lost = await sub.send()
    await given_up(sub)
    others = [await sub.received() for _ in range(2)]
    assert await handled(sub, *others) == others
    await floor_is(sub, 4)
    assert await rescue(sub) == 1
    assert sub.enqueued == [first, *others, lost]
    assert await handled(sub, lost) == [lost]


async def test_a_thousand_are_rescued_at_once(sub: Subscription) -> None:
    sent = [await sub.send() for _ in range(1_000)]
    await given_up(sub, count=1_000)
    assert await rescue(sub) == 1_000
    assert sorted(sub.enqueued) == sorted(sent)
    await nothing_left(sub)


async def test_one_that_the_inbox_knows_is_not_handled_again(sub: Subscription) -> None:
    """Recovery was faster."""
    lost = await sub.send()
    await given_up(sub)
    assert await sub.recovery().insert_missed([1]) == 1
    assert await rescue(sub) == 0
    assert sub.enqueued == [lost]
    await nothing_left(sub)


async def test_those_that_have_left_the_stream_are_passed_over(sub: Subscription) -> None:
    sent = [await sub.send() for _ in range(4)]
    await given_up(sub, count=4)
    await sub.js.purge_stream(sub.stream, seq=2)
    await sub.js.delete_msg(sub.stream, 3)
    assert await rescue(sub) == 2
    assert sub.enqueued == [sent[1], sent[3]]
    await nothing_left(sub)


async def test_of_overlapping_filters_each_gets_its_own_back(sub: Subscription) -> None:
    """Two consumers of the stream share a subject; a third subject is of the wider one only."""
    wide = ConsumerConfig(durable_name="wide", filter_subject=f"{sub.name}.>", ack_policy="explicit")
    await sub.js.add_consumer(sub.stream, wide)
    await ensure(sub.js, [], [about(sub, "wide")])
    foreign = f"{sub.name}.other.thing.v1"
    for subject in (foreign, sub.subject, foreign, sub.subject):
        await sub.send(subject=subject)
    await given_up(sub, count=2)
    assert await sub.recovery(f"{sub.name}.>").rescue(advisories(sub, "wide")) == 0
    assert await rescue(sub) == 2
    assert [row["subject"] for row in await sub.rows()] == [sub.subject] * 2


async def test_one_that_was_given_up_while_the_database_was_away_is_handled(sub: Subscription) -> None:
    sub.pull_times = PullTimes(insert_attempts=1, insert_pause=0.0, nak_delay=timedelta())

    class Away(PostgresInboxAdapter):
        async def insert(self, rows: Sequence[InboxRow], *, lasting: bool = True) -> Sequence[Inserted]:
            raise DatabaseUnreachable("away")

    there, sub.inbox = sub.inbox, Away(sub.pool)
    await sub.create_durable(max_deliver=2)
    lost = await sub.send()
    for _ in range(2):
        deliveries = await eventually("JetStream delivers", sub.fetch)
        with pytest.raises(DatabaseUnreachable):
            await sub.pull().accept(deliveries)
    reader = advisories(sub)

    async def tried() -> bool:
        assert await sub.fetch() == []
        try:
            await sub.recovery().rescue(reader)
        except DatabaseUnreachable:
            return True
        return False

    await eventually("the advisory is there, and the database is away", tried)
    sub.inbox = there
    assert await sub.recovery().rescue(reader) == 1  # at once, and not after the advisory's ack wait
    assert await handled(sub, lost) == [lost]
    await nothing_left(sub)


# --- with order ---


@pytest.mark.parametrize("settle", ["handler", "inbox"])
async def test_nothing_of_its_key_overtakes_one_that_the_floor_has_passed(sub: Subscription, settle: str) -> None:
    sub.keep_order().settle = settle
    first = await sub.send(Relay_Partition_Key="a")
    await given_up(sub)
    second = await sub.send(Relay_Partition_Key="a")
    free = await sub.received()  # has no key, waits for nobody
    assert await handled(sub, second, free) == [free]
    if settle == "handler":
        await sub.consumer.ack([(await sub.row(second))["ack_subject"]])  # as an acknowledgement of a copy would
    await floor_is(sub, 3)
    assert await sub.recovery().recover() == 1
    assert await handled(sub, second) == []
    assert await handled(sub, first, second) == [first, second]


@pytest.mark.parametrize(("limit", "value"), [("recent", timedelta()), ("range", 0)])
async def test_an_old_message_is_not_taken_up_again_though_the_watermark_is_older(
    sub: Subscription, limit: str, value: Any
) -> None:
    """Its row may be in the archive. If it is a stretch ago, nobody looks."""
    done = await sub.received()
    await handled(sub, done)
    await floor_is(sub, 1)
    sub.keep_order()
    await sub.query("DELETE FROM inbox_messages")
    sub.recovery_limits = replace(sub.recovery_limits, **{limit: value})
    assert await sub.recovery().recover() == 0
    assert await sub.rows() == []
    assert sub.order is not None
    assert (await sub.order.watermark(SUBSCRIPTION, sub.stream)).consumer_seq == 1


async def test_once_it_is_in_the_inbox_nothing_is_asked_of_the_inbox_any_more(sub: Subscription) -> None:
    """The floor stays before it until another message is acknowledged."""

    class Untouched:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

    sub.keep_order()
    await sub.send(Relay_Partition_Key="a")
    await given_up(sub)
    assert await sub.recovery().recover() == 1
    state = await sub.consumer.state()
    assert (state.ack_floor, state.delivered) == (0, 1)
    assert await sub.recovery(inbox=Untouched()).recover() == 0
