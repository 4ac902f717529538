"""PullMessages on a real durable: committed to the inbox first, enqueued then, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import pytest

from consumer.pull import PullTimes
from relay.adapters.jetstream.consumer import ConsumerLimits, NatsJetStreamConsumer
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.pool import Pool
from relay.devstack import NatsServer, PostgresServer
from relay.domain.errors import BrokerUnreachable, ConsumerMissing, DatabaseUnreachable, QueueUnreachable
from relay.domain.facts import MessagesReceived, OutageSeen
from relay.ports import Delivery, InboxRow, Inserted
from tests.integration.consuming import Subscription, claimed, inbox_row, subscribed
from tests.waiting import eventually, not_yet

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


class Watched(PostgresInboxAdapter):
    """The inbox, noting what was asked of it."""

    def __init__(self, sub: Subscription) -> None:
        super().__init__(sub.pool)
        self.inserted: list[list[UUID]] = []

    async def insert(self, rows: Sequence[InboxRow], *, lasting: bool = True) -> Sequence[Inserted]:
        self.inserted.append([row.message_id for row in rows])
        return await super().insert(rows, lasting=lasting)


async def test_rows_are_committed_before_anything_is_enqueued(sub: Subscription) -> None:
    seen: list[set[UUID]] = []

    async def enqueue(ids: Sequence[UUID]) -> None:
        assert {row["message_id"] for row in await sub.rows()} >= set(ids)
        seen.append(set(ids))

    sent = {await sub.send() for _ in range(5)}
    assert await sub.pull(enqueue=enqueue).run(not_yet(lambda: set().union(*seen) == sent)) == 5
    assert await sub.unacked() == 5  # acknowledged only once they are handled


async def test_a_batch_is_one_insert_and_one_round_of_enqueueing_in_the_streams_order(sub: Subscription) -> None:
    sent = [await sub.send() for _ in range(20)]
    inbox = Watched(sub)
    await sub.pull(inbox=inbox).accept(await sub.fetch())
    assert inbox.inserted == [sent]
    assert sub.enqueued == sent


async def test_a_queue_that_cannot_be_reached_loses_nothing(sub: Subscription) -> None:
    async def enqueue(ids: Sequence[UUID]) -> None:
        raise QueueUnreachable("away")

    message_id = await sub.send()
    await sub.pull(enqueue=enqueue).accept(await sub.fetch())
    row = await sub.row(message_id)
    assert (row["processed_at"], row["attempts"]) == (None, 0)
    assert [fact.server for fact in sub.facts if isinstance(fact, OutageSeen)] == ["redis"]
    await sub.query("UPDATE inbox_messages SET enqueued_at = enqueued_at - interval '1 minute'")
    assert await sub.inbox.overdue("from_upstream", 10) == [message_id]


async def test_a_redelivered_message_is_acked_when_finished_and_never_enqueued_again(sub: Subscription) -> None:
    done, waiting = await sub.send(), await sub.send()
    deliveries = await sub.fetch()
    await sub.pull().accept(deliveries)
    await sub.inbox.mark_all_processed([await claimed(sub.inbox, inbox_row(message_id=done))])
    assert await sub.pull().accept(deliveries) == 0
    assert sub.enqueued == [done, waiting]
    assert await sub.unacked() == 1
    assert sub.facts[-1] == MessagesReceived(
        context=sub.context, subscription="from_upstream", received=2, duplicates=2
    )


async def test_copies_of_a_finished_message_in_one_batch_are_all_acked(sub: Subscription) -> None:
    done = await sub.received()
    await sub.inbox.mark_all_processed([await claimed(sub.inbox, inbox_row(message_id=done))])
    await sub.consumer.ack([(await sub.row(done))["ack_subject"]])
    for generation in (1, 2, 3):  # replays carry an id of their own for the stream, and the event's
        await sub.send((await sub.row(done))["body"], Nats_Msg_Id=f"{done}.{generation}")
    deliveries = await sub.fetch()
    assert len(deliveries) == 3
    await sub.pull().accept(deliveries)
    assert await sub.unacked() == 0


async def test_finish_returns_what_the_open_request_still_delivers(sub: Subscription) -> None:
    """Else it would wait for the ack wait, two minutes, with nobody working on it."""
    assert await sub.consumer.fetch(10, timedelta(milliseconds=300)) == []
    await sub.send()
    [first] = await sub.consumer.fetch(10, timedelta(seconds=5))
    await sub.send()  # delivered to the same request
    [rest] = await sub.consumer.finish()
    assert (first.stream_seq, rest.stream_seq) == (1, 2)
    await sub.send()  # delivered to nobody
    assert await sub.consumer.finish() == []
    assert await sub.unacked() == 2


async def test_a_job_that_ends_puts_what_still_arrives_into_the_inbox(sub: Subscription) -> None:
    """Whether it ends because its turn is over or because a server is away."""

    class Late(NatsJetStreamConsumer):
        async def fetch(self, batch: int, wait: timedelta) -> Sequence[Delivery]:
            if self._missing > 0:
                raise BrokerUnreachable("away")
            found = await super().fetch(batch, wait)
            await sub.send()
            return found

    consumer = Late(sub.nats, stream=sub.stream, durable="down")
    await sub.send()
    await sub.pull(consumer=consumer).run(not_yet(lambda: sub.enqueued))
    assert len(sub.enqueued) == 2
    await sub.send()
    with pytest.raises(BrokerUnreachable):
        await sub.pull(consumer=consumer).run(lambda: True)
    assert len(sub.enqueued) == 4
    assert len(await sub.rows()) == await sub.unacked() == 4


async def test_messages_in_front_of_a_refusal_are_not_dropped(sub: Subscription) -> None:
    """The server may end a request with an error right behind the messages it sent."""
    await sub.send()
    await sub.consumer.fetch(10, timedelta(seconds=60))
    await sub.send()
    await eventually("the message has arrived", lambda: sub.consumer._arrived.qsize() == 1)
    refusal = {"Status": "409", "Description": "Leadership Change"}
    request = f"{sub.consumer._inbox}.{sub.consumer._request}"
    await (await sub.nats.client()).publish(request, b"", headers=refusal)
    await eventually("both have arrived", lambda: sub.consumer._arrived.qsize() == 2)
    assert [delivery.stream_seq for delivery in await sub.consumer.fetch(10, timedelta(seconds=60))] == [2]
    await sub.send()
    assert [delivery.stream_seq for delivery in await sub.consumer.fetch(10, timedelta(seconds=60))] == [3]


async def test_a_consumer_that_was_deleted_is_an_outage(sub: Subscription) -> None:
    waiting = asyncio.create_task(sub.consumer.fetch(10, timedelta(seconds=10)))

    async def is_waiting() -> bool:
        return bool((await sub.js.consumer_info(sub.stream, "down")).num_waiting)

    await eventually("the request is open", is_waiting)
    await sub.js.delete_consumer(sub.stream, "down")
    with pytest.raises(BrokerUnreachable, match=r"CONSUMER_MISSING: .* down "):
        await waiting


async def test_what_cannot_be_answered_does_not_keep_others_from_being_acknowledged(sub: Subscription) -> None:
    """A row may have been written by hand; as a command its reply subject would end the connection."""
    await sub.received()
    losses, reply = sub.consumer.losses, (await sub.rows())[0]["ack_subject"]
    await sub.consumer.ack(["", "a b", "a\r\nPING", None, reply])  # type: ignore[list-item]
    await sub.acked()
    assert sub.consumer.losses == losses


async def test_thousands_of_replies_arrive(sub: Subscription) -> None:
    limits = ConsumerLimits(batch_replies=7, unsent_bytes=100)
    consumer = NatsJetStreamConsumer(sub.nats, stream=sub.stream, durable="down", limits=limits)
    for _ in range(50):
        await sub.send()
    await consumer.ack([delivery.reply for delivery in await sub.fetch()])
    await sub.acked()
    assert (await sub.consumer.state()).ack_floor == 50


# --- outages ---


async def test_nothing_is_fetched_while_the_database_is_away(sub: Subscription) -> None:
    """Each delivery that cannot be kept would count against max_deliver."""
    nowhere = Pool("postgresql://nobody@127.0.0.1:9/nothing", max_size=1, application_name="away")
    nowhere.timeout = 0.2
    await nowhere.open()
    await sub.send()
    with pytest.raises(DatabaseUnreachable):
        await sub.pull(inbox=PostgresInboxAdapter(nowhere)).run(lambda: True)
    info = await sub.js.consumer_info(sub.stream, "down")
    assert (info.delivered.consumer_seq, info.num_waiting) == (0, 0)
    await nowhere.close()


@asynccontextmanager
async def away(server: PostgresServer) -> AsyncIterator[None]:
    await asyncio.to_thread(server.stop, "immediate")
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


async def test_a_batch_in_hand_waits_for_the_database_and_is_not_delivered_again_meanwhile(
    own_postgres: PostgresServer, nats_server: NatsServer
) -> None:
    from relay.adapters.postgres.migrations import upgrade

    url = own_postgres.create_database("sea")
    await asyncio.to_thread(upgrade, url)
    async with subscribed(url, nats_server.url, ack_wait=2) as sub:
        sub.pool.timeout = 0.2
        # PostgreSQL recovers within these attempts, on however busy a machine.
        sub.pull_times = PullTimes(insert_pause=0.2, insert_attempts=300)
        message_id = await sub.send()
        deliveries = await sub.fetch()
        another = asyncio.create_task(sub.lossy().fetch(10, timedelta(minutes=1)))
        async with away(own_postgres):
            accepting = asyncio.create_task(sub.pull().accept(deliveries))
            # Ten times: longer than the ack wait of two seconds, which each of them renews.
            await eventually("it was tried again and again", lambda: len(sub.facts) >= 10)
        assert await accepting == 1
        assert not another.done()
        another.cancel()
        assert {type(fact) for fact in sub.facts} == {OutageSeen, MessagesReceived}
        assert (await sub.row(message_id))["processed_at"] is None


async def test_a_batch_that_cannot_be_kept_goes_back_to_the_stream(sub: Subscription) -> None:
    sub.pull_times = PullTimes(fetch=timedelta(milliseconds=300), insert_pause=0.0, nak_delay=timedelta())

    class Away(PostgresInboxAdapter):
        async def insert(self, rows: Sequence[InboxRow], *, lasting: bool = True) -> Sequence[Inserted]:
            raise DatabaseUnreachable("away")

    message_id = await sub.send()
    with pytest.raises(DatabaseUnreachable, match="given back"):
        await sub.pull(inbox=Away(sub.pool)).accept(await sub.fetch())
    await sub.pull().run(not_yet(lambda: sub.enqueued))  # long before the ack wait of two minutes
    assert sub.enqueued == [message_id]


async def test_a_consumer_that_is_missing_is_named_with_what_to_do(sub: Subscription) -> None:
    wait = timedelta(milliseconds=300)
    assert await sub.consumer.fetch(1, wait) == []
    await sub.js.delete_consumer(sub.stream, "down")
    with pytest.raises(ConsumerMissing) as caught:
        await sub.consumer.fetch(1, wait)
    assert caught.value.hint == "run: relay streams ensure"
