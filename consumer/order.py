"""Order per key (DESIGN §6): what pulling, processing and recovering do where a subscription asks for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol
from uuid import UUID

from relay.domain.errors import Outage
from relay.domain.watermark import Watermark
from relay.ports import ConsumerState, Delivery, InboxRow, JetStreamConsumer

Enqueue = Callable[[Sequence[UUID]], Awaitable[None]]


class KeyOrder(Protocol):
    """What an ordered subscription asks of its inbox. All raise DatabaseUnreachable."""

    async def promote(self, ids: Sequence[UUID]) -> Sequence[UUID]:
        """Those of ``ids`` that waited for their turn and may run by now; marks them as enqueued."""

    async def next_of_keys(self, subscription: str, keys: Sequence[str]) -> Sequence[UUID]:
        """The heads of keys, those that may run; marks them as enqueued."""

    async def set_aside(self, row: InboxRow) -> Sequence[str]:
        """Reply subjects of what is parked with the row's key."""

    async def watermark(self, subscription: str, stream: str) -> Watermark:
        """Up to where the inbox is known to be complete."""

    async def move(self, subscription: str, stream: str, change: Callable[[Watermark], Watermark]) -> Watermark:
        """Change the watermark under its lock; returns what it is now."""


class WatchNumbers:
    """Notices that the server has begun to number deliveries anew, before a new number is taken for an old one.

    A server that was killed comes back a little behind where it was. Whoever fetches after a lost
    connection asks first where the server is.
    """

    def __init__(self, subscription: str, stream: str, order: KeyOrder, consumer: JetStreamConsumer) -> None:
        self._names = subscription, stream
        self._order = order
        self._consumer = consumer
        self._seen: int | None = None

    async def before_fetch(self) -> None:
        """Compare numbers if a connection was lost since. Raises BrokerUnreachable and DatabaseUnreachable."""
        losses = self._consumer.losses
        if losses != self._seen:
            await self.look()
            self._seen = losses

    async def after_fetch(self) -> None:
        """Trust no number if a connection was lost in between; then stream and inbox are compared first."""
        if self._consumer.losses != self._seen:
            await self._order.move(*self._names, lambda mark: replace(mark, consumer_seq=None, ahead=()))

    async def look(self) -> ConsumerState:
        """Compare numbers; returns where the server is."""
        mark = await self.mark()
        state = await self._consumer.state()
        # Read in this order: a server that has not gone back is never behind what was noted before.
        if mark.consumer_seq is not None and state.consumer_seq < mark.consumer_seq:
            await self._order.move(*self._names, lambda mark: mark.rewound(state.consumer_seq, state.delivered))
        return state

    async def mark(self) -> Watermark:
        """Up to where the inbox is known to be complete."""
        return await self._order.watermark(*self._names)

    async def compared(self, state: ConsumerState, upto: int) -> None:
        """Note that the inbox holds everything up to ``upto``, of what the consumer had been given by then."""
        number = state.consumer_seq if upto >= state.delivered else None
        await self._order.move(*self._names, lambda mark: mark.compared(number, upto))


class GoOn:
    """What follows when a message is done with: the next of its key is enqueued, or the key is set aside."""

    def __init__(self, order: KeyOrder, consumer: JetStreamConsumer, enqueue: Enqueue) -> None:
        self._order = order
        self._consumer = consumer
        self._enqueue = enqueue

    async def after(self, *rows: InboxRow) -> None:
        """Enqueue the next message of each row's key. Whatever fails here, the sweep does within seconds."""
        keys = [row.order_key for row in rows if row.order_key is not None]
        if not keys:
            return
        try:
            if following := await self._order.next_of_keys(rows[0].subscription, keys):
                await self._enqueue(following)
        except Outage:
            return

    async def after_death(self, row: InboxRow) -> None:
        """The same behind a dead letter. What is set aside with its key is acknowledged."""
        await self.after(row)
        try:
            if row.order_key is not None and (replies := await self._order.set_aside(row)):
                await self._consumer.ack(replies)
        except Outage:
            # The next look at what JetStream holds open acknowledges it.
            return


async def fetch_in_order(
    watch: WatchNumbers | None, fetch: Callable[[], Awaitable[Sequence[Delivery]]]
) -> Sequence[Delivery]:
    """Fetch, the numbers watched where a subscription is ordered."""
    if watch is None:
        return await fetch()
    await watch.before_fetch()
    deliveries = await fetch()
    if deliveries:
        await watch.after_fetch()
    return deliveries
