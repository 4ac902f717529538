"""The time in each stage: from the event to the stream, in the stream, in the inbox until it is done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from relay.devstack import NatsServer
from relay.domain.facts import Fact, HandlerAnswered, MessagesReceived, OutboxEventsPublished
from tests.integration.consuming import Subscription, subscribed
from tests.integration.http_service import answering, calling
from tests.integration.publishing import Relay, event

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as sub:
        yield sub


def told(facts: list[Fact], kind: type[Fact]) -> list[Any]:
    return [fact for fact in facts if isinstance(fact, kind)]


async def test_an_event_waits_from_its_time_to_its_publication(relay: Relay) -> None:
    await relay.create_stream()
    earlier = datetime.now(UTC) - timedelta(hours=1)
    relay.add(event("1", occurred_at=earlier), event("2"))
    await relay.drained()
    waits = [wait for fact in told(relay.facts, OutboxEventsPublished) for wait in fact.waits]
    old, young = sorted(waits, reverse=True)
    assert old >= 3600 > young >= 0


@pytest.mark.parametrize("how", ["alone", "together", "ordered"])
async def test_a_message_waits_in_the_stream_and_in_the_inbox(sub: Subscription, how: str) -> None:
    if how == "ordered":
        sub.keep_order()
    id = await sub.send()
    deliveries = [*await sub.fetch()]
    earlier = datetime.now(UTC) - timedelta(hours=1)
    await sub.pull().accept([it._replace(stored_at=earlier) for it in deliveries])
    await sub.pull().accept(deliveries)  # what is known already did not wait
    new, known = told(sub.facts, MessagesReceived)
    assert new.waits[0] >= 3600
    assert known.waits == []

    await sub.query("UPDATE inbox_messages SET received_at = now() - interval '1 hour'")
    for status in ("503 Service Unavailable", "200 OK"):
        async with calling(answering(status)) as (handler, _service):
            await sub.query("UPDATE inbox_messages SET next_attempt_at = NULL")
            if how == "together" and status == "200 OK":
                await sub.query("UPDATE inbox_messages SET attempts = 0")
                await sub.chunk(handler).run([id])
            else:
                await sub.process(handler).process(id)
    failed, done = told(sub.facts, HandlerAnswered)
    assert failed.waited is None
    assert done.waited >= 3600
