"""``on_failure = "nak"``: JetStream is told of each failure (SR-MESSAGE-CONTRACTS §5.2, §6). The row decides."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID, uuid4

import nats
import pytest

from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.devstack import NatsServer
from relay.domain.errors import BrokerUnreachable
from relay.domain.model import HandlerResult
from relay.domain.retry import Backoff
from relay.ports import HandlerRequest
from tests.integration.consuming import Handler, Subscription, subscribed
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

QUICK = Backoff(initial=timedelta(milliseconds=200), maximum=timedelta(milliseconds=400))
SLOW = Backoff(initial=timedelta(seconds=600), maximum=timedelta(seconds=600))


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


class Watching(NatsJetStreamConsumer):
    """A consumer that notes how many dead letters are stored when it terminates a message."""

    def __init__(self, sub: Subscription) -> None:
        super().__init__(sub.nats, stream=sub.stream, durable="down")
        self._sub = sub
        self.stored: list[int] = []

    async def terminate(self, replies: Sequence[str], reason: str) -> None:
        self.stored.append((await self._sub.js.stream_info(self._sub.dlq)).state.messages)
        await super().terminate(replies, reason)


@asynccontextmanager
async def advised(sub: Subscription) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """What returns the reason of the next TERM that the server tells of."""
    client = await nats.connect(sub.nats_url)
    told = await client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{sub.stream}.down")
    await client.flush()

    async def reason() -> str:
        return str(json.loads((await told.next_msg(timeout=10)).data)["reason"])

    try:
        yield reason
    finally:
        await client.close()


async def deliveries(sub: Subscription) -> int:
    """How often JetStream has delivered anything."""
    await (await sub.nats.client()).flush()
    return int((await sub.js.consumer_info(sub.stream, "down")).delivered.consumer_seq)


# --- temporary failure ---


async def test_a_failed_message_is_delivered_again_and_its_row_alone_decides_when_it_is_tried(
    sub: Subscription,
) -> None:
    message_id, handler = await sub.received(), Handler.answering(503)
    first = await sub.row(message_id)
    await sub.process(handler, nak=True, backoff=QUICK).process(message_id)
    sub.enqueued.clear()

    async def again() -> bool:
        return await sub.pull().accept(await sub.fetch()) == 0 and await deliveries(sub) == 2

    await eventually("it is delivered again", again)
    row = await sub.row(message_id)
    assert row["ack_subject"] != first["ack_subject"]
    # The redelivery is no attempt, and asks for none.
    assert (row["attempts"], len(handler.requests), sub.enqueued) == (1, 1, [])
    await sub.process(Handler.answering(200), nak=True).process(message_id)
    await sub.acked()
    assert (await sub.row(message_id))["attempts"] == 2


async def test_the_delay_is_the_back_off_of_the_row(sub: Subscription) -> None:
    message_id = await sub.received()
    await sub.process(Handler.answering(503), nak=True, backoff=SLOW).process(message_id)
    assert await sub.fetch() == []
    assert await sub.unacked() == 1
    assert await deliveries(sub) == 1


async def test_in_silence_nothing_comes_again(sub: Subscription) -> None:
    message_id, later = await sub.received(), await sub.received()
    await sub.process(Handler.answering(503), backoff=QUICK).process(message_id)
    # The other message waits longer than the first would take to be delivered again.
    await sub.process(Handler.answering(503), nak=True, backoff=Backoff(initial=2 * QUICK.maximum)).process(later)

    async def again() -> list[UUID]:
        return [UUID(it.headers["Nats-Msg-Id"]) for it in await sub.fetch()]

    assert await eventually("the other one is delivered again", again) == [later]


async def test_a_message_of_a_chunk_is_given_back_too(sub: Subscription) -> None:
    message_id = await sub.received()
    later = await sub.chunk(Handler.answering(503), nak=True, backoff=QUICK).run([message_id])
    assert list(later) == [message_id]
    assert await eventually("it is delivered again", sub.fetch)


async def test_without_nats_the_row_is_tried_again_all_the_same(sub: Subscription) -> None:
    class Away(NatsJetStreamConsumer):
        async def nak(self, replies: Sequence[str], delay: timedelta) -> None:
            raise BrokerUnreachable("away")

    message_id = await sub.received()
    away = Away(sub.nats, stream=sub.stream, durable="down")
    delay = await sub.process(Handler.answering(503), nak=True, consumer=away).process(message_id)
    assert delay is not None
    assert (await sub.row(message_id))["next_attempt_at"] is not None


async def test_many_failures_under_load_make_as_many_calls_as_attempts(sub: Subscription) -> None:
    """Deliveries come again and again while rows are tried: no call is made without an attempt of its row."""
    ids = [await sub.send() for _ in range(40)]
    calls: Counter[UUID] = Counter()
    delivered: Counter[UUID] = Counter()

    def answer(request: HandlerRequest) -> HandlerResult:
        """A message fails until JetStream has delivered it again."""
        calls[request.message_id] += 1
        return HandlerResult.from_status(503 if delivered[request.message_id] < 2 else 200)

    rows = sub.process(Handler(answer), nak=True, backoff=QUICK, max_attempts=10_000)
    done = asyncio.Event()

    async def pull() -> None:
        while not done.is_set():
            deliveries = await sub.fetch()
            await sub.pull().accept(deliveries)
            delivered.update(UUID(delivery.headers["Nats-Msg-Id"]) for delivery in deliveries)

    async def work() -> None:
        """Every row is tried twice at once, again and again: by the queue and by the sweep, as it were."""
        while not done.is_set():
            known = [row["message_id"] for row in await sub.rows()]
            await asyncio.gather(*(rows.on_loop.run(id) for id in [*known, *known]))
            await rows.completions.drain()
            done.set() if known and all(row["processed_at"] for row in await sub.rows()) else None

    await asyncio.wait_for(asyncio.gather(pull(), work()), 60)
    assert calls.keys() == set(ids)
    assert {row["message_id"]: row["attempts"] for row in await sub.rows()} == calls
    await sub.acked()


# --- permanent failure ---


@pytest.mark.parametrize(("status", "attempts", "reason"), [(422, 20, "poison"), (503, 1, "exhausted")])
async def test_a_permanent_failure_is_terminated_once_its_dead_letter_is_stored(
    sub: Subscription, status: int, attempts: int, reason: str
) -> None:
    message_id, consumer = await sub.received(), Watching(sub)
    rows = sub.process(Handler.answering(status), nak=True, max_attempts=attempts, consumer=consumer)
    async with advised(sub) as told:
        await rows.process(message_id)
        # The handler's text is not part of it.
        assert await told() == reason
    assert consumer.stored == [1]
    await sub.acked()


async def test_in_silence_a_permanent_failure_is_acknowledged(sub: Subscription) -> None:
    message_id, consumer = await sub.received(), Watching(sub)
    await sub.process(Handler.answering(422), consumer=consumer).process(message_id)
    await sub.acked()
    assert (consumer.stored, len(await sub.dead_letters())) == ([], 1)


@pytest.mark.parametrize("nak", [False, True])
async def test_an_unsupported_schema_version_is_terminated_once_its_dead_letter_is_stored(
    sub: Subscription, nak: bool
) -> None:
    body = {
        "schema_version": "9.0",
        "message_type": "LoopCreated",
        "message_id": str(uuid4()),
        "timestamp": "2024-01-15T14:30:00Z",
        "actor_id": "ann",
        "actor_kind": "HUMAN",
        "payload": {},
        "idempotency_key": "sha256:0",
    }
    await sub.send(json.dumps(body).encode())
    handler, consumer = Handler(), Watching(sub)
    await sub.pull(envelope="message-envelope").accept(await sub.fetch())
    [message_id] = sub.enqueued
    rows = sub.process(handler, envelope="message-envelope", nak=nak, consumer=consumer)
    async with advised(sub) as told:
        await rows.process(message_id)
        assert "[schema_version]" in await told()
    assert (consumer.stored, handler.requests) == ([1], [])
    assert "schema_version" in (await sub.dead_letters())[0]["reason"]
    await sub.acked()
