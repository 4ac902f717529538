"""Where a new consumer starts, and that an existing one keeps its start."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from nats.js import JetStreamContext

from relay.adapters.jetstream.connection import connect_once
from relay.adapters.jetstream.topology import diff, ensure
from relay.devstack import NatsServer
from relay.domain.errors import ConfigurationError
from relay.domain.topology import ConsumerSpec, StreamSpec

pytestmark = pytest.mark.anyio


@pytest.fixture
async def js(nats_server: NatsServer) -> AsyncIterator[JetStreamContext]:
    async with connect_once(nats_server.url) as js:
        yield js


@pytest.fixture
def spec() -> StreamSpec:
    """A stream that no other test has."""
    name = f"START_{uuid.uuid4().hex[:8]}"
    return StreamSpec(name=name, subjects=(f"{name}.event.>",), max_age=None, max_bytes=-1)


@pytest.fixture
def consumer(spec: StreamSpec) -> ConsumerSpec:
    return ConsumerSpec(
        stream=spec.name,
        durable="sea__from_it",
        filter_subject=f"{spec.name}.event.>",
        ack_wait=timedelta(seconds=120),
        max_deliver=20,
        max_ack_pending=50,
    )


async def test_a_new_consumer_starts_where_it_is_told_to(
    js: JetStreamContext, spec: StreamSpec, consumer: ConsumerSpec
) -> None:
    await ensure(js, [spec], [])
    for _ in range(3):
        await js.publish(f"{spec.name}.event.x", b"")
    middle = (await js.get_msg(spec.name, 2)).time
    assert isinstance(middle, datetime)
    starts = ("beginning", "now", middle)
    consumers = [
        replace(consumer, durable=f"c{number}", start_at=at)  # type: ignore[arg-type]
        for number, at in enumerate(starts)
    ]
    await ensure(js, [], consumers)
    await js.publish(f"{spec.name}.event.x", b"")
    counts = [(await js.consumer_info(spec.name, it.durable)).num_pending for it in consumers]
    assert counts == [4, 1, 3]
    assert await diff(js, [spec], consumers) == await ensure(js, [spec], consumers) == []


async def test_a_changed_start_has_no_effect_and_says_so(
    js: JetStreamContext, spec: StreamSpec, consumer: ConsumerSpec
) -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    changes = ("beginning", "now"), ("now", "beginning"), ("now", moment), (moment, "now")
    for number, (first, then) in enumerate(changes):
        named = replace(consumer, durable=f"c{number}")
        await ensure(js, [spec], [replace(named, start_at=first)])  # type: ignore[arg-type]
        changed = replace(named, start_at=then, max_deliver=7)  # type: ignore[arg-type]
        assert [(it.action, it.fields) for it in await ensure(js, [], [changed])] == [
            ("updated", ("max_deliver",)),
            ("refused", ("start_at",)),
        ]
        [found] = await diff(js, [], [changed])
        assert (found.field, found.actual, found.changeable) == (
            "start_at",
            first if isinstance(first, str) else first.isoformat(),
            False,
        )


async def test_a_start_in_the_future_is_refused_as_the_server_would_not_wait(
    js: JetStreamContext, spec: StreamSpec, consumer: ConsumerSpec
) -> None:
    with pytest.raises(ConfigurationError, match=r"sea__from_it: start_at\b"):
        await ensure(js, [spec], [replace(consumer, start_at=datetime(2100, 1, 1, tzinfo=UTC))])


async def test_processes_that_make_a_consumer_of_now_while_messages_come_all_succeed(
    js: JetStreamContext, nats_server: NatsServer, spec: StreamSpec, consumer: ConsumerSpec
) -> None:
    await ensure(js, [spec], [])

    async def start() -> None:
        async with connect_once(nats_server.url) as own:
            await own.publish(f"{spec.name}.event.x", b"")
            await ensure(own, [], [replace(consumer, start_at="now")])

    await asyncio.gather(*(start() for _ in range(8)))
    assert await diff(js, [spec], [replace(consumer, start_at="now")]) == []
