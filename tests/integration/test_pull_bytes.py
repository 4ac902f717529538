"""What a worker fetches is bounded in bytes: large messages neither fill its memory nor cost it its connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from relay.adapters.jetstream.consumer import ConsumerLimits, NatsJetStreamConsumer
from relay.devstack import NatsServer
from relay.settings import Settings, load_settings
from tests.integration.consuming import Subscription, subscribed

pytestmark = pytest.mark.anyio

MB = 1024**2
#: As large as a server takes by default, with room for headers.
LARGE = b'{"event_type":"vibe_created","event_version":1,"payload":"%b"}' % (b"x" * (MB - 2_048))


@pytest.fixture
async def sub(database_url: str, own_nats: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, own_nats.url, max_ack_pending=-1) as subscription:
        yield subscription


async def test_more_than_a_connection_may_hold_arrives_over_one_connection(sub: Subscription) -> None:
    """By default nats-server cuts a connection for which 64 MB wait."""
    count = 150
    for _ in range(count):
        await sub.send(LARGE)
    pull, consumer = sub.pull(batch_size=300), sub.consumer
    seen, most = 0, 0
    while seen < count:
        batch = await consumer.fetch(300, timedelta(seconds=5))
        waiting = sum(len(it.body) for it in consumer._arrived._queue if it is not None)  # type: ignore[attr-defined]
        most = max(most, waiting + sum(len(it.body) for it in batch))
        assert consumer.losses == 0
        seen += await pull.accept(batch)
    assert seen == count
    assert most <= consumer._max_bytes == 8 * MB
    assert len(sub.enqueued) == count


@pytest.mark.parametrize("asked", [1, 3 * MB])
async def test_a_request_asks_for_no_less_than_the_largest_message(sub: Subscription, asked: int) -> None:
    consumer = NatsJetStreamConsumer(sub.nats, stream=sub.stream, durable="down", max_bytes=asked)
    for _ in range(5):
        await sub.send(LARGE)
    batches = []
    while sum(batches) < 5:
        batches.append(len(await consumer.fetch(300, timedelta(seconds=5))) + len(await consumer.finish()))
    assert batches == ([1] * 5 if asked == 1 else [3, 2])


def asking_for_little(sub: Subscription) -> NatsJetStreamConsumer:
    """A consumer whose requests are smaller than a large message, which was sent when the server took more."""
    limits = ConsumerLimits(subjects_bytes=10_000 - MB)
    return NatsJetStreamConsumer(sub.nats, stream=sub.stream, durable="down", max_bytes=1, limits=limits)


async def test_a_message_larger_than_any_request_arrives_alone(sub: Subscription) -> None:
    consumer = asking_for_little(sub)
    small = [await sub.send() for _ in range(3)]
    await sub.send(LARGE)
    large = [await sub.send(LARGE) for _ in range(2)]
    last = await sub.send()
    batches = []
    while sum(map(len, batches)) < 7:
        batches.append([*await consumer.fetch(300, timedelta(seconds=1)), *await consumer.finish()])
    sizes = [[it.body == LARGE for it in batch] for batch in batches]
    assert sizes == [[False] * 3, [True], [True], [True], [False]]
    assert batches[0][0].headers["Nats-Msg-Id"] == str(small[0])
    assert [batches[n][0].headers["Nats-Msg-Id"] for n in (2, 3, 4)] == [str(id) for id in (*large, last)]
    assert await consumer.fetch(300, timedelta(milliseconds=100)) == []
    assert consumer.losses == 0


async def test_a_request_that_ends_with_a_message_too_large_for_it_asks_again_when_it_is_wanted(
    sub: Subscription,
) -> None:
    consumer = asking_for_little(sub)
    assert await consumer.fetch(300, timedelta(milliseconds=100)) == []
    for _ in range(2):
        await sub.send(LARGE)
    first = [*await consumer.fetch(300, timedelta(seconds=5)), *await consumer.finish()]
    second = [*await consumer.fetch(300, timedelta(seconds=5)), *await consumer.finish()]
    assert [len(first), len(second)] == [1, 1]


def test_the_bytes_of_a_worker_are_shared_by_all_that_it_fetches() -> None:
    def share(contexts: int, subscriptions: int, **values: str) -> int:
        streams = {"stream": "UP_EVENTS", "durable": "d", "filter_subject": "up.event.>", "handler": "http://h/x"}
        declared = {
            f"c{n}": {
                "database_url": "postgresql://h/d",
                "stream": {"name": f"C{n}", "subjects": [f"c{n}.>"]},
                "subscriptions": {
                    f"s{m}": {**streams, "durable": f"d{n}_{m}", "filter_subject": f"up.event.e{m}"}
                    for m in range(subscriptions)
                },
            }
            for n in range(contexts)
        }
        declared["up"] = {
            "database_url": "postgresql://h/d",
            "stream": {"name": "UP_EVENTS", "subjects": ["up.>"]},
        }
        return Settings.model_validate({"contexts": declared, **values}).pull_bytes_each

    assert share(0, 0) == 32 * MB
    assert share(1, 1) == 16 * MB
    assert share(2, 3, pull_bytes="80MB") == 10 * MB


def test_the_setting_is_found_in_the_environment_and_no_nonsense_is_taken() -> None:
    assert load_settings(None, {"RELAY_PULL_BYTES": "64MB"}).pull_bytes == 64 * MB
    for value in ("unlimited", "1KB", "-5"):
        with pytest.raises(Exception, match=r"pull_bytes"):
            load_settings(None, {"RELAY_PULL_BYTES": value})
