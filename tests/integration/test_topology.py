"""Streams and consumers on a real server: made, compared, mended, never deleted."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import nats
import pytest
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig

from relay.adapters.jetstream.connection import connect_once
from relay.adapters.jetstream.topology import (
    ConsumerView,
    Difference,
    TopologyChange,
    diff,
    ensure,
    show,
)
from relay.devstack import NatsServer
from relay.domain.errors import ConfigurationError
from relay.domain.topology import RELAY_ADVISORIES, ConsumerSpec, StreamSpec

pytestmark = pytest.mark.anyio
_numbers = itertools.count(1)


@pytest.fixture
async def js(nats_server: NatsServer) -> AsyncIterator[JetStreamContext]:
    async with connect_once(nats_server.url) as context:
        yield context


@pytest.fixture
def spec() -> StreamSpec:
    """A stream that no other test has."""
    name = f"T{next(_numbers)}_{uuid.uuid4().hex[:8]}"
    return StreamSpec(
        name=name,
        subjects=(f"{name}.event.>", f"{name}.extra"),
        max_age=timedelta(days=7),
        max_bytes=10 * 1024**3,
        duplicate_window=timedelta(milliseconds=700),
    )


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


async def test_what_is_made_is_what_the_spec_says(
    js: JetStreamContext, spec: StreamSpec, consumer: ConsumerSpec
) -> None:
    assert await ensure(js, [spec], [consumer]) == [
        TopologyChange(kind="stream", name=spec.name, action="created"),
        TopologyChange(kind="consumer", name=f"{spec.name}/sea__from_it", action="created"),
    ]
    stream = (await js.stream_info(spec.name)).config
    assert (stream.storage, stream.retention, stream.discard) == ("file", "limits", "new")
    assert (stream.max_age, stream.max_bytes, stream.max_msgs_per_subject) == (604800, 10737418240, -1)
    assert (stream.num_replicas, stream.duplicate_window) == (1, 0.7)
    assert stream.subjects == list(spec.subjects)
    made = (await js.consumer_info(spec.name, "sea__from_it")).config
    assert (made.ack_policy, made.deliver_policy, made.deliver_subject) == ("explicit", "all", None)
    assert (made.ack_wait, made.max_deliver, made.max_ack_pending) == (120, 20, 50)
    assert (made.durable_name, made.filter_subject) == ("sea__from_it", consumer.filter_subject)


async def test_again_there_is_nothing_to_do(
    js: JetStreamContext, spec: StreamSpec, consumer: ConsumerSpec
) -> None:
    await ensure(js, [spec, RELAY_ADVISORIES], [consumer])
    assert await ensure(js, [spec, RELAY_ADVISORIES], [consumer]) == []
    assert await diff(js, [spec, RELAY_ADVISORIES], [consumer]) == []


async def test_processes_that_start_together_all_succeed(
    nats_server: NatsServer, spec: StreamSpec, consumer: ConsumerSpec
) -> None:
    async def start() -> None:
        async with connect_once(nats_server.url) as own:
            await ensure(own, [spec], [consumer])

    await asyncio.gather(*(start() for _ in range(8)))
    async with connect_once(nats_server.url) as own:
        assert await diff(own, [spec], [consumer]) == []


async def test_processes_of_two_releases_start_together(nats_server: NatsServer, spec: StreamSpec) -> None:
    async def start(wanted: StreamSpec) -> None:
        async with connect_once(nats_server.url) as own:
            await ensure(own, [wanted], [])

    newer = replace(spec, max_age=timedelta(days=8))
    await asyncio.gather(*(start(wanted) for wanted in (spec, newer) * 4))
    async with connect_once(nats_server.url) as own:
        assert (await own.stream_info(spec.name)).config.max_age in (604800, 691200)


class Overtaken:
    """Sees no stream the first time: another process makes it between our look and our attempt."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js
        self._looked = False

    async def stream_info(self, name: str) -> object:
        if not self._looked:
            self._looked = True
            raise nats.js.errors.NotFoundError
        return await self._js.stream_info(name)

    def __getattr__(self, name: str) -> object:
        return getattr(self._js, name)


async def test_a_process_that_is_overtaken_updates_instead(js: JetStreamContext, spec: StreamSpec) -> None:
    await ensure(js, [replace(spec, max_age=timedelta(days=1))], [])
    changes = await ensure(Overtaken(js), [spec], [])  # type: ignore[arg-type]
    assert changes == [TopologyChange(kind="stream", name=spec.name, action="updated", fields=("max_age",))]


async def test_missing_ones_are_shown_and_nothing_is_made(
    js: JetStreamContext, spec: StreamSpec, consumer: ConsumerSpec
) -> None:
    found = await diff(js, [spec], [consumer])
    assert [(one.kind, one.missing, one.changeable) for one in found] == [
        ("stream", True, True),
        ("consumer", True, True),
    ]
    assert len(await diff(js, [spec], [consumer])) == 2


async def test_drift_is_shown_and_mended(js: JetStreamContext, spec: StreamSpec, consumer: ConsumerSpec) -> None:
    await ensure(js, [spec], [consumer])
    wanted = replace(
        spec,
        subjects=spec.subjects[:1],
        max_age=None,
        max_bytes=-1,
        max_msgs_per_subject=5,
        duplicate_window=timedelta(seconds=60),
    )
    reader = replace(consumer, ack_wait=timedelta(seconds=0.1), max_deliver=-1, max_ack_pending=5)
    assert [(one.field, one.actual, one.expected) for one in await diff(js, [wanted], [reader])] == [
        ("subjects", f"{spec.name}.event.>, {spec.name}.extra", f"{spec.name}.event.>"),
        ("max_age", "7d", "unlimited"),
        ("max_bytes", "10737418240", "unlimited"),
        ("max_msgs_per_subject", "unlimited", "5"),
        # Else a full subject would drop its oldest message.
        ("discard_new_per_subject", "false", "true"),
        ("duplicate_window", "0.7s", "60s"),
        ("ack_wait", "120s", "0.1s"),
        ("max_deliver", "20", "unlimited"),
        ("max_ack_pending", "50", "5"),
    ]
    changes = await ensure(js, [wanted], [reader])
    assert [(change.action, len(change.fields)) for change in changes] == [("updated", 6), ("updated", 3)]
    assert await diff(js, [wanted], [reader]) == []


async def test_an_update_keeps_messages_and_what_no_spec_knows(js: JetStreamContext, spec: StreamSpec) -> None:
    await ensure(js, [spec], [])
    made = (await js.stream_info(spec.name)).config
    await js.update_stream(made.evolve(description="by hand", metadata={"team": "sea"}, allow_direct=True))
    await js.publish(f"{spec.name}.event.x", b"kept")
    await ensure(js, [replace(spec, max_age=timedelta(days=1))], [])
    info = await js.stream_info(spec.name)
    assert (info.config.max_age, info.config.description, info.config.allow_direct) == (86400, "by hand", True)
    assert info.config.metadata is not None
    assert info.config.metadata["team"] == "sea"
    assert info.state.messages == 1


async def test_a_full_stream_pushes_back(js: JetStreamContext, spec: StreamSpec) -> None:
    await ensure(js, [replace(spec, max_msgs_per_subject=1)], [])
    await js.publish(f"{spec.name}.extra", b"first")
    with pytest.raises(nats.js.errors.APIError, match="maximum messages per subject"):
        await js.publish(f"{spec.name}.extra", b"second")
    assert (await js.get_msg(spec.name, 1)).data == b"first"


async def test_what_cannot_be_changed_is_reported_and_left(js: JetStreamContext, spec: StreamSpec) -> None:
    await js.add_stream(
        StreamConfig(
            name=spec.name,
            subjects=list(spec.subjects),
            storage=StorageType.MEMORY,
            retention="workqueue",  # type: ignore[arg-type]
            max_age=1.0,
            max_bytes=1024,
        )
    )
    wanted = replace(spec, max_bytes=1024, duplicate_window=timedelta(seconds=1))
    found = {one.field: one for one in await diff(js, [wanted], [])}
    assert found["storage"] == Difference(
        kind="stream", name=spec.name, field="storage", expected="file", actual="memory", changeable=False
    )
    assert (found["retention"].actual, found["retention"].changeable) == ("workqueue", False)
    assert (found["discard"].actual, found["discard"].changeable) == ("old", True)
    updated, refused = await ensure(js, [wanted], [])
    assert (updated.action, updated.fields) == ("updated", ("discard", "max_age"))
    assert (refused.action, refused.fields) == ("refused", ("storage", "retention"))
    assert [one.field for one in await diff(js, [wanted], [])] == ["storage", "retention"]


async def test_interest_becomes_limits(js: JetStreamContext, spec: StreamSpec) -> None:
    await ensure(js, [spec], [])
    made = (await js.stream_info(spec.name)).config
    await js.update_stream(made.evolve(retention="interest"))
    assert [one.changeable for one in await diff(js, [spec], [])] == [True]
    assert [change.fields for change in await ensure(js, [spec], [])] == [("retention",)]
    assert (await js.stream_info(spec.name)).config.retention == "limits"


async def test_a_stream_that_answers_before_the_disk_has_it_is_reported(
    js: JetStreamContext, spec: StreamSpec
) -> None:
    await js.add_stream(StreamConfig(name=spec.name, subjects=["x." + spec.name], persist_mode="async"))  # type: ignore[arg-type]
    found = {one.field: one for one in await diff(js, [spec], [])}
    assert (found["persist_mode"].actual, found["persist_mode"].changeable) == ("async", False)


async def test_a_consumer_of_another_kind_is_reported_and_the_rest_mended(
    js: JetStreamContext, spec: StreamSpec, consumer: ConsumerSpec
) -> None:
    await ensure(js, [spec], [])
    other = ConsumerConfig(
        durable_name=consumer.durable, ack_policy=AckPolicy.ALL, filter_subject=consumer.filter_subject
    )
    await js.add_consumer(spec.name, other)
    updated, refused = await ensure(js, [spec], [consumer])
    assert updated.fields == ("ack_wait", "max_deliver", "max_ack_pending")
    assert refused.fields == ("ack_policy",)
    assert [(one.field, one.actual) for one in await diff(js, [spec], [consumer])] == [("ack_policy", "all")]


async def test_nothing_is_deleted(js: JetStreamContext, spec: StreamSpec, consumer: ConsumerSpec) -> None:
    await ensure(js, [spec], [consumer])
    await ensure(js, [], [])
    await ensure(js, [spec], [replace(consumer, durable="other")])
    assert {found.name for found in await js.consumers_info(spec.name)} == {"sea__from_it", "other"}


async def test_refusals_say_what_to_do(js: JetStreamContext, spec: StreamSpec, consumer: ConsumerSpec) -> None:
    with pytest.raises(ConfigurationError, match=rf"{spec.name}/sea__from_it\b"):
        await ensure(js, [], [consumer])
    await ensure(js, [spec], [])
    with pytest.raises(ConfigurationError, match="a subject belongs to one stream"):
        await ensure(js, [replace(spec, name=f"{spec.name}_2")], [])
    with pytest.raises(ConfigurationError, match="needs a cluster"):
        await ensure(js, [replace(spec, replicas=3)], [])


async def test_state(js: JetStreamContext, spec: StreamSpec, consumer: ConsumerSpec) -> None:
    await ensure(js, [spec], [consumer])
    for number in range(3):
        await js.publish(f"{spec.name}.event.x", str(number).encode())
    subscription = await js.pull_subscribe_bind(consumer.durable, spec.name)
    first, _ = await subscription.fetch(2)
    await first.ack_sync()
    (view,) = await show(js, [spec], [consumer])
    assert (view.exists, view.messages, view.first_seq, view.last_seq) == (True, 3, 1, 3)
    assert view.size_bytes > 0
    assert view.subjects == spec.subjects
    assert view.consumers == (ConsumerView(durable="sea__from_it", waiting=1, unacknowledged=1, redelivered=0),)


async def test_state_of_what_is_missing(js: JetStreamContext, spec: StreamSpec, consumer: ConsumerSpec) -> None:
    (view,) = await show(js, [], [consumer])
    assert (view.name, view.exists, view.consumers) == (spec.name, False, ())


async def test_a_stream_of_requests_leaves_the_answer_to_whoever_answers(
    js: JetStreamContext, spec: StreamSpec
) -> None:
    quiet = replace(spec, no_ack=True)
    await ensure(js, [spec], [])
    assert [(found.field, found.expected) for found in await diff(js, [quiet], [])] == [("no_ack", "true")]
    assert [change.fields for change in await ensure(js, [quiet], [])] == [("no_ack",)]
    assert await diff(js, [quiet], []) == []
    client = js._nc

    async def reply(asked: Msg) -> None:
        await asked.respond(b"42")

    answering = await client.subscribe(f"{spec.name}.extra", cb=reply)
    answer = await client.request(f"{spec.name}.extra", b"", timeout=60)
    assert answer.data == b"42"  # with PubAcks, that of the stream would be the first, or the only one
    await answering.unsubscribe()
    assert (await js.stream_info(spec.name)).state.messages == 1
