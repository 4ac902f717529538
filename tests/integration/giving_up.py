"""What tests of max_deliver share: messages that JetStream gave up, and the server's own advisories about them."""

from __future__ import annotations

from datetime import timedelta

from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.domain.topology import ConsumerSpec, advisory_consumer
from tests.integration.consuming import Subscription
from tests.waiting import eventually


def about(sub: Subscription, durable: str = "down") -> ConsumerSpec:
    """The durable that reads the server's own advisories about a durable."""
    return advisory_consumer(
        ConsumerSpec(
            stream=sub.stream,
            durable=durable,
            filter_subject=f"{sub.name}.event.>",
            ack_wait=timedelta(minutes=2),
            max_deliver=1,
            max_ack_pending=1_000,
        )
    )


def advisories(sub: Subscription, durable: str = "down") -> NatsJetStreamConsumer:
    spec = about(sub, durable)
    return NatsJetStreamConsumer(sub.nats, stream=spec.stream, durable=spec.durable)


async def given_up(sub: Subscription, count: int = 1, deliveries: int = 1) -> None:
    """Have messages delivered as often as JetStream does, to workers that die with them."""
    waiting = about(sub)
    known = (await sub.js.consumer_info(waiting.stream, waiting.durable)).num_pending or 0
    await sub.create_durable(max_deliver=deliveries, ack_wait=0.3)
    for _ in range(deliveries):
        await sub.lose(count)

    async def told() -> bool:
        if deliveries > 1:  # the server looks at a message's deliveries when it is to hand it out again
            assert await sub.fetch() == []
        return (await sub.js.consumer_info(waiting.stream, waiting.durable)).num_pending == known + count

    await eventually("JetStream gives up", told)
    # What is delivered from now on is to be kept, however slow this machine is.
    await sub.create_durable(max_deliver=deliveries, ack_wait=120)


async def nothing_left(sub: Subscription) -> None:
    """Wait until no advisory waits, none is pending."""
    spec = about(sub)

    async def settled() -> bool:
        info = await sub.js.consumer_info(spec.stream, spec.durable)
        return not info.num_ack_pending and not info.num_pending

    await eventually("every advisory is settled", settled)
