"""Several subscriptions of a context, with the same ids or the same messages: each has fates of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import pytest

from consumer.handlers import MessageContext
from relay.adapters.postgres.inbox_operations import MessageFilter, PostgresMessageOperations
from relay.adapters.postgres.incidents import PostgresIncidents
from relay.adapters.postgres.life import read
from relay.devstack import NatsServer
from relay.domain.incidents import IncidentFilter
from relay.domain.letters import read_letter
from relay.domain.life import LifeSearch
from relay.domain.operators import Operator
from tests.integration.consuming import Handler, Subscription, another, subscribed
from tests.integration.python_handling import Vibe, handling

pytestmark = pytest.mark.anyio

TAGS = [f"tag-{n}" for n in range(20)]
ALL = ["waiting", "failing", "running", "parked", "dead", "processed"]


@pytest.fixture
async def orders(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as sub:
        yield sub


@pytest.fixture
async def shipping(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as sub:
        sub.subscription = "from_shipping"
        yield sub


async def publish(sub: Subscription, *ids: str, **headers: str) -> None:
    for id in ids:
        payload = {"title": "x"}
        content = {"message_id": id, "event_type": "vibe_created", "event_version": 1, "payload": payload}
        await sub.send(json.dumps(content).encode(), Nats_Msg_Id=id, **headers)


async def recorded(sub: Subscription) -> PostgresIncidents:
    """Record the dead letters of a context as incidents."""
    incidents = PostgresIncidents(sub.pool.connection)
    for seq, letter in enumerate(await sub.dead_letters(), 1):
        body = json.dumps({name: value for name, value in letter.items() if not name.startswith("_")}).encode()
        await incidents.record_letters([read_letter(letter["_subject"], body, sub.dlq, seq)])
    return incidents


async def take(sub: Subscription) -> Sequence[UUID]:
    """Take what is in the stream into the inbox; returns the keys of the rows that are new."""
    before = len(sub.enqueued)
    await sub.pull().accept(await sub.fetch())
    return sub.enqueued[before:]


async def handle(sub: Subscription, handler: Handler, keys: Sequence[UUID]) -> None:
    for key in keys:
        await sub.process(handler).process(key)


async def test_producers_with_the_same_ids_do_not_hide_each_others_messages(
    orders: Subscription, shipping: Subscription
) -> None:
    service = Handler()
    for sub in (orders, shipping):
        await publish(sub, *TAGS)
        await handle(sub, service, await take(sub))
        await sub.acked()
    assert [json.loads(it.body)["message_id"] for it in service.requests] == TAGS * 2
    # One service may be behind both: no key may look like a repeat of another.
    assert len({it.idempotency_key for it in service.requests}) == 2 * len(TAGS)
    assert [it.idempotency_key for it in service.requests[: len(TAGS)]] == TAGS
    rows = await orders.rows()
    assert {(row["subscription"], row["stream"]) for row in rows} == {
        (orders.subscription, orders.stream),
        (shipping.subscription, shipping.stream),
    }
    assert all(row["processed_at"] for row in rows)


async def test_a_repeat_is_one_in_its_own_subscription_also_of_a_row_apart(
    orders: Subscription, shipping: Subscription
) -> None:
    for sub in (orders, shipping):
        await publish(sub, "tag-0")
        deliveries = await sub.fetch()
        assert [await sub.pull().accept(deliveries) for _ in range(2)] == [1, 0]
        await handle(sub, Handler(), sub.enqueued)
        assert await sub.pull().accept(deliveries) == 0
        await sub.acked()


async def test_the_key_of_a_row_stays_when_it_is_requeued(orders: Subscription, shipping: Subscription) -> None:
    for sub in (orders, shipping):
        await publish(sub, "tag-0")
    await take(orders)
    handler = Handler.answering(422, 200)
    keys = await take(shipping)
    await handle(shipping, handler, keys)
    incidents = await recorded(shipping)
    [incident] = (await incidents.find(IncidentFilter(), 10)).items
    assert (incident["message_id"], incident["subscription"]) == ("tag-0", "from_shipping")
    outcome = await incidents.requeue([incident["id"]], Operator("somebody"))
    assert (outcome.done, outcome.refused) == ((str(incident["id"]),), ())
    await handle(shipping, handler, keys)
    first, second = (it.idempotency_key for it in handler.requests)
    assert first == second != "tag-0"


async def test_two_subscriptions_to_the_same_messages_have_fates_of_their_own(orders: Subscription) -> None:
    audit = await another(orders, "audit")
    ids = [str(await orders.send()) for _ in range(10)]
    mine, theirs = await asyncio.gather(take(orders), take(audit))
    assert [str(key) for key in mine] == ids
    assert len(theirs) == len(ids)
    refuses, accepts = Handler.answering(422), Handler()
    await handle(audit, refuses, theirs)
    await handle(orders, accepts, mine)
    for handler in (refuses, accepts):
        assert sorted(json.loads(it.body)["message_id"] for it in handler.requests) == sorted(ids)
    ends = {(row["subscription"], row["processed_at"] is not None) for row in await orders.rows()}
    assert ends == {(orders.subscription, True), ("audit", False)}
    assert len(await orders.dead_letters()) == len(ids)
    for sub in (orders, audit):
        await sub.acked()
        assert await sub.inbox.missing(sub.subscription, sub.stream, 0, len(ids)) == []


async def test_what_nobody_can_read_dies_in_each(orders: Subscription) -> None:
    audit = await another(orders, "audit")
    await orders.send(b"no JSON")
    for sub in (orders, audit):
        await handle(sub, Handler(), await take(sub))
        await sub.acked()
    dead = [row["subscription"] for row in await orders.rows() if row["dead_lettered_at"]]
    assert sorted(dead) == ["audit", orders.subscription]


async def test_order_is_kept_in_one_of_two(orders: Subscription) -> None:
    """The key of a row decides nothing about its place."""
    audit = (await another(orders, "audit")).keep_order()
    ids = [str(UUID(int=9 - n, version=4)) for n in range(3)]
    await publish(orders, *ids, Relay_Partition_Key="k")
    await take(orders)
    assert len(await take(audit)) == 1
    handler = Handler()
    for n in range(3):
        await handle(audit, handler, audit.enqueued[n:])
    assert [json.loads(it.body)["message_id"] for it in handler.requests] == ids


async def test_functions_see_the_id_of_the_source(orders: Subscription) -> None:
    audit = await another(orders, "audit")
    seen: list[Any] = []

    async def note(vibe: Vibe, context: MessageContext) -> None:
        seen.append((context.message_id, context.correlation_id, context.idempotency_key))

    id = UUID(int=1, version=4)
    await publish(orders, str(id))
    await take(orders)
    [key] = await take(audit)
    async with handling(audit) as calls:
        await calls.process(calls.handler(note)).process(key)
    assert seen == [(id, id, str(key))]
    assert key != id


async def test_operators_find_every_row_by_the_id_of_the_source(orders: Subscription) -> None:
    audit = await another(orders, "audit")
    id = await orders.send()
    for sub in (orders, audit):
        await handle(sub, Handler.answering(422), await take(sub))
    incidents = await recorded(orders)
    both = ["audit", orders.subscription]
    messages = PostgresMessageOperations(orders.pool.connection)
    for asked in (id, str(id)):
        page = await messages.find(MessageFilter(statuses=ALL, message_id=asked), 10)
        assert sorted(it["subscription"] for it in page.items) == both
        assert {str(it["message_id"]) for it in page.items} == {str(id)}
        dead = await incidents.find(IncidentFilter(message_id=asked), 10)
        assert sorted(it["subscription"] for it in dead.items) == both
        assert {str(it["message_id"]) for it in dead.items} == {str(id)}
    keys = {row["subscription"]: str(row["message_id"]) for row in await orders.rows()}
    for asked in (str(id), keys["audit"]):
        row = await messages.get(asked)
        assert row is not None
        [other] = {*both} - {row["subscription"]}
        assert row["others"] == f"{keys[other]} of {other}"
    found = await read(orders.pool.connection, LifeSearch.of(str(id)))
    assert sorted(it["subscription"] for it in found["messages"]) == both
    assert sorted(it["subscription"] for it in found["incidents"]) == both
    # Also if only the row apart is left: the other subscription never got the message, or archived it.
    await orders.query("DELETE FROM inbox_messages WHERE message_id = %s", id)
    row = await messages.get(str(id))
    assert row is not None
    assert (str(row["id"]), row["others"]) == (keys["audit"], None)
