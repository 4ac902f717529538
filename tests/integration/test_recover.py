"""Recovery of deliveries: what a dead worker took with it comes back within seconds, not after the ack wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.devstack import NatsServer, PostgresServer
from relay.domain.errors import DatabaseUnreachable
from relay.domain.facts import DeliveriesRecovered
from relay.ports import ConsumerState
from tests.integration.consuming import Handler, Subscription, subscribed
from tests.servers import initialised, migrated
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


async def a_second_later(sub: Subscription) -> None:
    await sub.query(
        "UPDATE inbox_messages SET received_at = received_at - interval '1 minute', "
        "processed_at = processed_at - interval '2 seconds', "
        "dead_lettered_at = dead_lettered_at - interval '2 seconds'"
    )


async def test_messages_swallowed_by_a_dead_worker_are_recovered_and_acknowledged(sub: Subscription) -> None:
    sent = [await sub.send(Actor_Id="Grüße") for _ in range(3)]
    await sub.lose(3)
    assert await sub.recovery().recover() == 3
    assert sub.enqueued == sent
    assert sub.facts[-1] == DeliveriesRecovered(context=sub.context, subscription="from_upstream", count=3)
    row = await sub.row(sent[1])
    assert (row["stream_seq"], row["headers"]["Actor-Id"], row["event_type"]) == (2, "Grüße", "vibe_created")
    assert await sub.unacked() == 3
    for message_id in sent:
        await sub.process(Handler()).process(message_id)
    # By a reply subject that the server never gave out, as nobody lives who knows the real one.
    await sub.acked()
    info = await sub.js.consumer_info(sub.stream, "down")
    assert (info.ack_floor.stream_seq, info.delivered.consumer_seq, info.num_redelivered) == (3, 3, 0)


@pytest.mark.parametrize("settle", ["handler", "inbox"])
async def test_what_a_crash_of_the_server_takes_back_is_recovered_and_nothing_is_acknowledged_before(
    server_directory: Path, nats_server: NatsServer, settle: str
) -> None:
    """What is acknowledged after its handler does not wait for the disk. Here no later commit takes it along."""
    settings = {"wal_writer_delay": "10s", "autovacuum": "off"}
    with initialised(PostgresServer(server_directory / "postgres", settings=settings)) as server:
        async with subscribed(migrated(server, "crashing"), nats_server.url) as sub:
            sub.settle = settle
            sent = [await sub.send() for _ in range(3)]
            enough = iter([True, False])
            await sub.pull().run(lambda: next(enough))
            assert sub.enqueued == sent
            await asyncio.to_thread(server.stop, "immediate")
            await asyncio.to_thread(server.start)
            left = await eventually("the server answers", lambda: count(sub))
            assert left == [0 if settle == "handler" else 3]
            assert await sub.unacked() == (3 if settle == "handler" else 0)
            assert await sub.recovery().recover() == 3 - left[0]
            handler = Handler()
            for message_id in sent:
                await sub.process(handler).process(message_id)
            assert len(await sub.rows()) == 3
            await sub.acked()


async def count(sub: Subscription) -> list[int]:
    """How many messages the inbox has, once the server answers again."""
    with suppress(DatabaseUnreachable):
        return [len(await sub.rows())]
    return []


async def test_recovering_is_repeatable(sub: Subscription) -> None:
    await sub.send()
    await sub.lose()
    assert [await sub.recovery().recover() for _ in range(3)] == [1, 0, 0]
    assert len(sub.enqueued) == len(await sub.rows()) == 1


async def test_an_unreadable_message_is_recovered_like_any_other(sub: Subscription) -> None:
    await sub.send(b"not json")
    await sub.lose()
    assert await sub.recovery().recover() == 1
    await sub.process(Handler()).process(sub.enqueued[0])
    assert len(await sub.dead_letters()) == 1
    await sub.acked()


async def test_messages_of_other_filters_of_the_stream_are_left_alone(
    database_url: str, nats_server: NatsServer
) -> None:
    async with subscribed(database_url, nats_server.url) as sub:
        foreign = f"{sub.name}.other.thing.v1"
        sent = []
        for _ in range(2):
            await sub.send(subject=foreign)
            sent.append(await sub.send())
            await sub.send(subject=foreign)
        await sub.lose(2)
        assert await sub.recovery().recover() == 2
        assert sub.enqueued == sent
        assert [row["subject"] for row in await sub.rows()] == [sub.subject] * 2


async def test_a_message_that_has_left_the_stream_meanwhile_is_passed_over(sub: Subscription) -> None:
    await sub.send()
    kept = await sub.send()
    await sub.lose(2)
    await sub.js.delete_msg(sub.stream, 1)
    assert await sub.recovery().recover() == 1
    assert sub.enqueued == [kept]


async def test_a_neighbour_that_did_arrive_keeps_its_reply_subject(sub: Subscription) -> None:
    """The first sequence without a row belongs to another filter; the consumer's next message is no lost one."""
    await sub.send(subject=f"{sub.name}.other.thing.v1")
    arrived = await sub.received()
    lost = await sub.send()
    await sub.lose()
    before = await sub.row(arrived)
    assert await sub.recovery().recover() == 1
    assert sub.enqueued == [arrived, lost]
    assert await sub.row(arrived) == before


async def test_what_was_not_delivered_yet_is_left_to_the_pull_job(sub: Subscription) -> None:
    lost = await sub.send()
    await sub.lose()
    await sub.send()
    assert await sub.recovery().recover() == 1
    assert sub.enqueued == [lost]


async def test_a_message_on_its_way_is_given_time_to_arrive(sub: Subscription) -> None:
    """At the first look it is suspect; the second look, two seconds later, finds it in the inbox."""
    await sub.send()
    deliveries = await sub.fetch()

    class Looked(NatsJetStreamConsumer):
        looks = 0

        async def state(self) -> ConsumerState:
            self.looks += 1
            if self.looks == 2:
                await sub.pull().accept(deliveries)
            return await super().state()

    consumer = Looked(sub.nats, stream=sub.stream, durable="down")
    assert await sub.recovery(consumer=consumer).recover() == 0
    assert (consumer.looks, len(sub.enqueued)) == (2, 1)
    assert (await sub.rows())[0]["ack_subject"] == deliveries[0].reply  # the real one


async def test_a_message_delivered_between_the_two_looks_is_not_suspect(sub: Subscription) -> None:
    await sub.send()
    await sub.lose()

    class Looked(NatsJetStreamConsumer):
        looks = 0

        async def state(self) -> ConsumerState:
            self.looks += 1
            if self.looks == 2:
                await sub.send()
                await sub.lose()
            return await super().state()

    consumer = Looked(sub.nats, stream=sub.stream, durable="down")
    assert await sub.recovery(consumer=consumer).recover() == 1
    assert await sub.recovery().recover() == 1


async def test_an_acknowledgement_that_was_lost_is_sent_again(sub: Subscription) -> None:
    """nats-server killed right after an ack brings the message back as pending; so does a cut connection."""
    processed, dead = await sub.received(), await sub.received()
    await sub.process(Handler(), consumer=sub.lossy()).process(processed)
    await sub.process(Handler.answering(422), consumer=sub.lossy()).process(dead)
    waiting = await sub.received()
    assert await sub.recovery().recover() == 0
    assert await sub.unacked() == 3  # their acknowledgements may still be on their way
    await a_second_later(sub)
    assert await sub.recovery().recover() == 0
    await eventually("two of three are acknowledged", lambda: is_one(sub.unacked()))
    assert (await sub.row(waiting))["processed_at"] is None


async def is_one(number: Any) -> bool:
    return await number == 1


@pytest.mark.parametrize("batches", [1, 2])
async def test_every_copy_of_a_message_is_acknowledged_although_there_is_one_row(
    sub: Subscription, batches: int
) -> None:
    """A replay is stored a second time; max_ack_pending of these must not stall the subscription."""
    original = await sub.send()
    if batches == 2:
        await sub.pull().accept(await sub.fetch())
    [message] = [await sub.js.get_msg(sub.stream, 1)]
    await sub.send(message.data, Nats_Msg_Id=f"{original}.1")
    await sub.pull().accept(await sub.fetch())
    await sub.process(Handler()).process(original)
    await a_second_later(sub)
    for _ in range(2):
        await sub.recovery().recover()
    assert await sub.unacked() == 0


async def test_nothing_is_asked_of_the_inbox_when_nothing_is_open(sub: Subscription) -> None:
    class Untouched:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

    assert await sub.recovery(inbox=Untouched()).recover() == 0  # nothing was ever sent
    await sub.process(Handler()).process(await sub.received())
    await sub.acked()
    await sub.send()
    assert await sub.recovery(inbox=Untouched()).recover() == 0  # nothing was delivered
