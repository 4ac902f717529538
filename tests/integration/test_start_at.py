"""A subscription that starts later than its stream: what lies before its start is no gap, for nobody who looks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.adapters.jetstream.topology import ensure
from relay.adapters.postgres.ledger import PostgresLedger
from relay.commands.reconcile import FindMissing
from relay.devstack import NatsServer
from relay.domain.topology import ConsumerSpec, StartAt
from tests.integration.consuming import SUBSCRIPTION, Handler, Subscription, subscribed

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["unordered", "ordered"])
async def sub(
    request: pytest.FixtureRequest, database_url: str, nats_server: NatsServer
) -> AsyncIterator[Subscription]:
    """A subscription of a stream that has three messages, without its consumer."""
    async with subscribed(database_url, nats_server.url) as subscription:
        for _ in range(3):
            await subscription.send(Relay_Partition_Key="k")
        await subscription.js.delete_consumer(subscription.stream, "down")
        yield subscription.keep_order() if request.param == "ordered" else subscription


async def start(sub: Subscription, at: StartAt) -> None:
    spec = ConsumerSpec(
        stream=sub.stream,
        durable="down",
        filter_subject=f"{sub.name}.event.>",
        ack_wait=timedelta(seconds=120),
        max_deliver=20,
        max_ack_pending=50,
        start_at=at,
    )
    await ensure(sub.js, [], [spec])


def find(sub: Subscription) -> FindMissing:
    return FindMissing(
        sub.context,
        SUBSCRIPTION,
        stream=sub.stream,
        filter_subject=f"{sub.name}.event.>",
        consumer=sub.consumer,
        auditor=NatsStreamAuditor(sub.nats),
        inbox=PostgresLedger(sub.pool),
    )


async def places(sub: Subscription) -> list[int]:
    rows: list[dict[str, Any]] = await sub.query("SELECT stream_seq FROM inbox_messages ORDER BY stream_seq")
    return [row["stream_seq"] for row in rows]


@pytest.mark.parametrize("at", ["now", "a time"])
async def test_what_lies_before_the_start_is_no_gap(sub: Subscription, at: Any) -> None:
    await start(sub, "now" if at == "now" else datetime.now(UTC))
    assert await sub.recovery().recover() == 0
    sent = [await sub.send(Relay_Partition_Key="k") for _ in range(2)]
    await sub.pull().accept(await sub.fetch())
    assert await sub.recovery().recover() == 0
    handler = Handler()
    for message_id in sent:
        await sub.process(handler).process(message_id)
    assert [request.message_id for request in handler.requests] == sent
    await sub.acked()
    assert [await sub.recovery().recover(), await sub.recovery().reconcile(find(sub))] == [0, 0]
    assert (await find(sub).run()).checked == 2
    assert await places(sub) == [4, 5]


async def test_what_lies_behind_it_is_still_found(sub: Subscription) -> None:
    await start(sub, datetime.now(UTC))
    await sub.send(Relay_Partition_Key="k")
    await sub.lose()
    assert await sub.recovery().recover() == 1
    assert await places(sub) == [4]
    await sub.js.purge_stream(sub.stream, keep=1)
    await sub.process(Handler()).process((await sub.rows())[0]["message_id"])
    await sub.acked()
    await sub.query("DELETE FROM inbox_messages")
    assert list((await find(sub).run()).missing) == [4]


async def test_a_subscription_of_the_beginning_takes_all(sub: Subscription) -> None:
    await start(sub, "beginning")
    await sub.lose(3)
    assert await sub.recovery().recover() == 3
    assert await places(sub) == [1, 2, 3]
