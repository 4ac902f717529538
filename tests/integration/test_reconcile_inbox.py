"""The consumer's side: what JetStream is done with and the inbox does not hold is taken up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from relay.adapters.jetstream.stream_reader import NatsStreamAuditor, StreamReader
from relay.adapters.postgres.ledger import PostgresLedger
from relay.commands.reconcile import HORIZON, AuditLimits, FindMissing
from relay.devstack import NatsServer
from relay.domain.facts import InboxGapFilled
from tests.integration.consuming import SUBSCRIPTION, Handler, Subscription, subscribed

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


def find(sub: Subscription, **options: Any) -> FindMissing:
    return FindMissing(
        sub.context,
        SUBSCRIPTION,
        stream=sub.stream,
        filter_subject=f"{sub.name}.event.>",
        consumer=sub.consumer,
        auditor=NatsStreamAuditor(sub.nats),
        inbox=PostgresLedger(sub.pool),
        **options,
    )


async def reconcile(sub: Subscription, page: int | None = None) -> int:
    return await sub.recovery().reconcile(find(sub), page)


async def handled(sub: Subscription, count: int) -> list[UUID]:
    """Messages received, processed and acknowledged."""
    ids = [await sub.received() for _ in range(count)]
    for id in ids:
        await sub.process(Handler()).process(id)
    await sub.acked()
    return ids


async def lose_rows(sub: Subscription, *ids: UUID) -> None:
    """What a failover to a replica that was behind does."""
    await sub.query("DELETE FROM inbox_messages WHERE message_id = ANY (%s)", list(ids))


async def test_a_look_without_a_horizon_finds_what_is_too_old_for_the_fleet(sub: Subscription) -> None:
    await lose_rows(sub, *await handled(sub, 2))
    begun = datetime.now(UTC)
    assert (await find(sub, horizon=timedelta()).run()).missing == []
    found = await find(sub, horizon=None).run()
    assert (found.missing, found.coming) == ([1, 2], 0)
    assert found.since is not None
    assert found.since < begun


async def test_a_row_of_another_subscription_hides_no_loss_and_one_of_before_a_rename_does(
    sub: Subscription,
) -> None:
    ids = await handled(sub, 2)
    await sub.query("UPDATE inbox_messages SET subscription = 'another'")
    assert (await find(sub).run()).missing == []
    found = find(sub, others=["another"])
    assert len((await found.run()).missing) == len(ids)
    assert await sub.recovery().reconcile(found) == len(ids)
    assert (await found.run()).missing == []


async def test_rows_lost_after_their_acknowledgement_come_back_and_are_handled(sub: Subscription) -> None:
    ids = await handled(sub, 5)
    await lose_rows(sub, ids[1], ids[4])
    report = await find(sub).run()
    assert (report.checked, list(report.missing)) == (5, [2, 5])
    sub.enqueued.clear()
    assert await reconcile(sub, page=7) == 2
    assert sub.enqueued == [ids[1], ids[4]]
    assert sub.facts[-1] == InboxGapFilled(context=sub.context, subscription=SUBSCRIPTION, count=2)
    handler = Handler()
    await sub.process(handler).process(ids[1])
    assert handler.requests[0].message_id == ids[1]
    assert await reconcile(sub) == 0
    assert len(await sub.rows()) == 5


async def test_rows_let_go_before_they_were_handled_come_back_too(sub: Subscription) -> None:
    """They were acknowledged while they waited, so JetStream delivers none of them again."""
    ids = [await sub.received() for _ in range(3)]
    for id in ids:
        await sub.process(Handler.answering(503)).process(id)
    await sub.consumer.ack(await sub.inbox.let_go(SUBSCRIPTION, 0, 10))
    await sub.acked()
    await lose_rows(sub, *ids)
    assert await reconcile(sub, page=0) == 3
    await sub.process(Handler()).process(ids[0])
    assert (await sub.row(ids[0]))["processed_at"] is not None


async def test_where_nothing_is_missing_nothing_is_taken_up(sub: Subscription) -> None:
    await handled(sub, 3)
    before, facts = await sub.rows(), len(sub.facts)
    assert [await reconcile(sub, page) for page in (None, 0, 1)] == [0, 0, 0]
    assert (await sub.rows(), len(sub.facts)) == (before, facts)


async def test_an_empty_stream_is_nothing_to_compare(sub: Subscription) -> None:
    assert (await find(sub).run()).checked == (await find(sub).run(page=3)).checked == 0


async def test_what_jetstream_has_still_to_deliver_is_not_missing(sub: Subscription) -> None:
    await handled(sub, 1)
    await sub.send()
    await sub.lose()
    await sub.send()
    report = await find(sub).run()
    assert (report.checked, list(report.missing)) == (1, [])


async def test_messages_of_other_filters_are_not_ours(sub: Subscription) -> None:
    await sub.send(subject=f"{sub.name}.other.thing.v1")
    await handled(sub, 2)
    assert (await find(sub).run()).checked == 2
    assert await reconcile(sub) == 0


async def test_a_message_is_known_by_its_id_though_its_place_has_changed(sub: Subscription) -> None:
    """After a loss the stream gives sequences out again, and republished events lie elsewhere."""
    await handled(sub, 2)
    await sub.query("UPDATE inbox_messages SET stream_seq = stream_seq + 40")
    assert await reconcile(sub) == 0


async def test_a_replayed_message_is_the_same_message(sub: Subscription) -> None:
    [id] = await handled(sub, 1)
    message = await sub.js.get_msg(sub.stream, 1)
    await sub.send(message.data, Nats_Msg_Id=f"{id}.1")
    await sub.pull().accept(await sub.fetch())
    await sub.acked()
    assert list((await find(sub).run()).missing) == []


async def test_an_unreadable_message_is_known_by_its_place(sub: Subscription) -> None:
    await sub.send(b"not json")
    await sub.send(Nats_Msg_Id="x" * 201)
    await sub.pull().accept(await sub.fetch())
    for row in await sub.rows():
        await sub.process(Handler()).process(row["message_id"])
    await sub.acked()
    report = await find(sub).run()
    assert (report.checked, list(report.missing)) == (2, [])


async def test_what_the_inbox_may_have_forgotten_is_not_asked_after(sub: Subscription) -> None:
    ids = await handled(sub, 2)
    await lose_rows(sub, *ids)
    assert list((await find(sub, horizon=timedelta()).run()).missing) == []
    assert timedelta(hours=24) == HORIZON


async def test_every_page_is_compared(sub: Subscription) -> None:
    ids = await handled(sub, 7)
    await lose_rows(sub, *ids)
    report = await find(sub, limits=AuditLimits(page=2)).run()
    assert (report.checked, list(report.missing)) == (7, [1, 2, 3, 4, 5, 6, 7])


async def test_a_message_that_has_left_the_stream_meanwhile_is_passed_over(sub: Subscription) -> None:
    ids = await handled(sub, 3)
    await lose_rows(sub, ids[0])
    facts = len(sub.facts)

    class Gone(StreamReader):
        async def next(self, seq: int) -> Any:
            return await super().next(seq + 1 if seq == 1 else seq)

    reader = Gone(sub.nats, stream=sub.stream, durable="down", filter_subject=f"{sub.name}.event.>")
    assert await sub.recovery(reader=reader).reconcile(find(sub)) == 0
    assert len(sub.facts) == facts  # its neighbour was not accepted in its place
