"""``settle = "inbox"``: JetStream is done with a message once its row is committed, and the row owns the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from consumer.pull import PullTimes
from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.devstack import NatsServer
from relay.domain.errors import DatabaseUnreachable
from relay.ports import InboxRow, Inserted
from tests.integration.consuming import SUBSCRIPTION, Handler, Subscription, inbox_row, subscribed

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url, max_ack_pending=3) as subscription:
        subscription.settle = "inbox"
        yield subscription


async def test_a_message_is_acknowledged_once_its_row_is_committed_and_not_before(sub: Subscription) -> None:
    committed: list[Any] = []

    class Consumer(NatsJetStreamConsumer):
        async def ack(self, replies: Sequence[str]) -> None:
            committed.append((list(replies), [row["ack_subject"] for row in await sub.rows()]))
            await super().ack(replies)

    await sub.send()
    await sub.send(b"not json")
    consumer = Consumer(sub.nats, stream=sub.stream, durable="down")
    await sub.pull(consumer=consumer).accept(await sub.fetch())
    [(acked, rows)] = committed
    assert sorted(acked) == sorted(rows)
    assert len(rows) == 2
    await sub.acked()


async def test_a_batch_that_could_not_be_committed_is_not_acknowledged(sub: Subscription) -> None:
    sub.pull_times = PullTimes(insert_attempts=1, insert_pause=0.0)

    class Away(PostgresInboxAdapter):
        async def insert(self, rows: Sequence[InboxRow], *, lasting: bool = True) -> Sequence[Inserted]:
            raise DatabaseUnreachable("away")

    await sub.send()
    with pytest.raises(DatabaseUnreachable):
        await sub.pull(inbox=Away(sub.pool)).accept(await sub.fetch())
    assert await sub.unacked() == 1


async def test_a_redelivery_of_what_waits_is_acknowledged_and_not_enqueued_again(sub: Subscription) -> None:
    message_id = await sub.received()
    await sub.js.publish(sub.subject, b"{}", headers={"Nats-Msg-Id": str(message_id) + ".1"})
    body = b'{"event_type": "vibe_created", "event_version": 1, "payload": {}}'
    await sub.js.publish(sub.subject, body, headers={"Nats-Msg-Id": str(message_id) + ".2"})
    await sub.pull().accept(await sub.fetch())
    assert sub.enqueued.count(message_id) == 1
    await sub.acked()


@pytest.mark.parametrize("status", [200, 422, 503])
async def test_what_becomes_of_the_message_is_no_business_of_jetstream(sub: Subscription, status: int) -> None:
    class Silent(NatsJetStreamConsumer):
        async def ack(self, replies: Sequence[str]) -> None:
            raise AssertionError("acknowledged twice")

        terminate = ack  # type: ignore[assignment]

    message_id = await sub.received()
    await sub.acked()
    silent = Silent(sub.nats, stream=sub.stream, durable="down")
    delay = await sub.process(Handler.answering(status), consumer=silent).process(message_id)
    row = await sub.row(message_id)
    assert (delay is not None, row["processed_at"] is not None, row["dead_lettered_at"] is not None) == (
        status == 503,
        status == 200,
        status == 422,
    )


async def test_failing_messages_leave_room_for_others(sub: Subscription) -> None:
    """Three are all that JetStream hands out at once."""
    failing = [await sub.received() for _ in range(3)]
    for message_id in failing:
        await sub.process(Handler.answering(503)).process(message_id)
    other = await sub.received()
    await sub.process(Handler()).process(other)
    assert (await sub.row(other))["processed_at"] is not None


async def test_a_lost_acknowledgement_is_made_good_though_the_row_still_waits(sub: Subscription) -> None:
    sub.settle = "handler"  # which does not acknowledge now
    await sub.received()
    sub.settle = "inbox"
    assert await sub.recovery().recover() == 0
    assert await sub.unacked() == 1
    await sub.query("UPDATE inbox_messages SET received_at = received_at - interval '2 seconds'")
    await sub.recovery().recover()
    await sub.acked()


async def test_with_settle_handler_a_row_that_waits_is_not_acknowledged_by_recovery(sub: Subscription) -> None:
    sub.settle = "handler"
    await sub.received()
    await sub.query("UPDATE inbox_messages SET received_at = received_at - interval '2 seconds'")
    await sub.recovery().recover()
    assert await sub.unacked() == 1


async def test_what_a_dead_worker_had_is_recovered_and_acknowledged_at_once(sub: Subscription) -> None:
    sent = await sub.send()
    await sub.lose()
    assert await sub.recovery().recover() == 1
    assert sub.enqueued == [sent]
    await sub.acked()


# --- the bound ---


async def test_rows_that_could_be_handled_are_counted_up_to_a_limit(sub: Subscription) -> None:
    rows = [inbox_row(seq) for seq in range(1, 7)]
    await sub.inbox.insert([*rows, inbox_row(7, subscription="other")])
    assert [await sub.inbox.due(SUBSCRIPTION, limit) for limit in (3, 6, 100)] == [3, 6, 6]
    for row, status in zip(rows, (200, 422, 503), strict=False):
        await sub.process(Handler.answering(status)).process(row.message_id)
    assert await sub.inbox.claim(rows[3].message_id, timedelta(seconds=5)) is not None
    assert await sub.inbox.due(SUBSCRIPTION, 100) == 3


async def test_nothing_is_fetched_while_the_workers_have_enough_to_do(sub: Subscription) -> None:
    sub.pull_times = replace(sub.pull_times, workers_busy=0.01)
    for _ in range(5):
        await sub.send()
    looks = iter(range(50))
    await sub.pull(batch_size=1, max_due=2).run(lambda: next(looks, None) is not None)
    assert len(await sub.rows()) == 2
    # They fail and wait for their next attempt, which makes room: they do not count as work.
    for message_id in sub.enqueued[:2]:
        await sub.process(Handler.answering(503)).process(message_id)
    looks = iter(range(50))
    await sub.pull(batch_size=1, max_due=2).run(lambda: next(looks, None) is not None)
    assert len(await sub.rows()) == 4
