"""Contexts share the slots of a process for batches: a quiet one does not wait for the backlogs of others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from uuid import UUID, uuid4

import pytest

from relay.commands.publish import PublishConfig, PublishOutboxEvents
from relay.concurrency import FairSlots
from relay.domain.model import OutboxEvent
from relay.domain.ordering import Shard
from relay.domain.policies import PublishOutcome
from relay.domain.routing import Routing
from relay.ports import Message
from relay.testing import MemoryFacts, MemoryOutbox, MemoryPublisher, MemoryStream

pytestmark = pytest.mark.anyio

BUSY = 10
BACKLOG = 40
ALL = Shard(0, 1)


class Remote(MemoryPublisher):
    """A publisher that lets other tasks run while it waits, as a real one does."""

    async def publish_all(
        self, messages: Sequence[Message], begun: float | None = None
    ) -> Mapping[str, PublishOutcome]:
        for _ in range(5):
            await asyncio.sleep(0)
        # On a busy machine the time of the claim may be up.
        return await super().publish_all(messages)


class Publisher:
    """A context with so many events, published by twos."""

    def __init__(self, name: str, events: int, slots: FairSlots) -> None:
        self.outbox, self.stream = MemoryOutbox(), MemoryStream(name.upper(), f"{name}.event.>")
        config = PublishConfig(routing=Routing(context=name), envelope="handler", batch_size=2)
        self.command = PublishOutboxEvents(config, self.outbox, Remote(self.stream), MemoryFacts(), slots)
        for number in range(events):
            self.add(f"v{number}")

    def add(self, aggregate: str) -> UUID:
        id = uuid4()
        self.outbox.add(
            OutboxEvent(
                id=id, aggregate_type="vibe", aggregate_id=aggregate, event_type="vibe_created", payload="{}"
            )
        )
        return id

    @property
    def published(self) -> int:
        return len(self.stream.messages)


async def until(publishers: Sequence[Publisher], count: int) -> None:
    async with asyncio.timeout(60):
        while sum(it.published for it in publishers) < count:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)


def fair(size: int, long_after: float = 60.0) -> FairSlots:
    """However busy the machine, no batch counts as one that waits for a server."""
    return FairSlots(size, long_after=long_after)


@pytest.fixture
def slots() -> FairSlots:
    return fair(2)


async def test_an_event_of_a_quiet_context_waits_for_no_backlog_of_others(slots: FairSlots) -> None:
    busy = [Publisher(f"busy{number}", BACKLOG, slots) for number in range(BUSY)]
    quiet = Publisher("quiet", 1, slots)
    drains = [asyncio.create_task(it.command.drain(ALL)) for it in busy]
    await until(busy, BUSY * BACKLOG // 4)
    assert await quiet.command.drain(ALL) == 1
    assert sum(it.published for it in busy) < BUSY * BACKLOG // 2
    await asyncio.gather(*drains)
    assert [it.published for it in busy] == [BACKLOG] * BUSY


async def test_backlogs_shrink_side_by_side(slots: FairSlots) -> None:
    busy = [Publisher(f"busy{number}", BACKLOG, slots) for number in range(BUSY)]
    drains = [asyncio.create_task(it.command.drain(ALL)) for it in busy]
    await until(busy, BUSY * BACKLOG // 2)
    counts = [it.published for it in busy]
    assert max(counts) <= min(counts) + 2 * 2, "a batch or two more"
    await asyncio.gather(*drains)


async def test_a_drain_that_is_to_end_while_it_waits_for_a_slot_publishes_nothing_more(slots: FairSlots) -> None:
    busy, stopping = Publisher("busy", BACKLOG, slots), False
    async with slots.slot("other"), slots.slot("another"):
        drain = asyncio.create_task(busy.command.drain(ALL, lambda: not stopping))
        await asyncio.sleep(0)
        stopping = True
    assert await drain == busy.published == 0


async def test_who_has_cost_least_is_next_and_of_equal_ones_who_asked_first() -> None:
    slots, order = fair(1), list[str]()

    async def work(name: str, cost: int) -> None:
        for _ in range(6 // cost):
            async with slots.slot(name) as slot:
                order.append(name)
                await asyncio.sleep(0)
                slot.cost = cost

    await asyncio.gather(work("a", 1), work("b", 3), work("c", 1))
    assert "".join(order) == "abc" + 4 * "ac" + "bac"


async def test_who_paused_has_no_credit() -> None:
    slots, order = fair(1), list[str]()

    async def work(name: str) -> None:
        for _ in range(4):
            async with slots.slot(name) as slot:
                order.append(name)
                await asyncio.sleep(0)
                slot.cost = 1

    await work("a")
    # Two of each: of two alone the other one is next, whatever it has paid.
    await asyncio.gather(*(work(name) for name in "aabb"))
    assert "".join(order) == "aaaa" + 8 * "ab"


async def test_who_gives_up_waiting_takes_no_slot() -> None:
    slots = fair(1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(slots.slot("a"))
        waiting = [asyncio.ensure_future(stack.enter_async_context(slots.slot(name))) for name in "bc"]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
    # The slot was granted, and whoever had it then is gone.
    waiting[1].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    async with asyncio.timeout(60), slots.slot("d"):
        pass


async def test_a_slot_whose_task_waits_for_a_server_holds_up_nobody() -> None:
    slots = fair(1, long_after=0.0)
    async with asyncio.timeout(60), slots.slot("a"), slots.slot("a"), slots.slot("b"):
        pass


async def test_a_slot_that_is_kept_long_is_given_back_once() -> None:
    slots = fair(1, long_after=0.0)
    for _ in range(3):
        async with slots.slot("a"):
            for _ in range(3):
                await asyncio.sleep(0)
    slots.long_after = 60.0
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(slots.slot("a"))
        second = asyncio.ensure_future(stack.enter_async_context(slots.slot("a")))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not second.done()
        second.cancel()
