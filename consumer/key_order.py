"""Order per key (DESIGN §6): what pull, processing and recovery do for an ordered subscription."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from relay.adapters.postgres.ordered_inbox import OrderedInboxAdapter
from relay.domain.errors import Outage
from relay.domain.watermark import Watermark
from relay.ports import ConsumerState, InboxRow, JetStreamConsumer

Enqueue = Callable[[Sequence[UUID]], Awaitable[None]]


class DeliveryNumbers:
    """Notices when the server's delivery numbers have gone back, so that old and new ones are not confused.

    A killed server can restart a little behind its last state. So after a lost connection, the state of the
    server is read before the next fetch.
    """

    def __init__(
        self, subscription: str, stream: str, order: OrderedInboxAdapter, consumer: JetStreamConsumer
    ) -> None:
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
        """Discard the noted number if a connection was lost meanwhile; then stream and inbox are compared."""
        if self._consumer.losses != self._seen:
            await self._order.move(*self._names, lambda mark: replace(mark, consumer_seq=None, ahead=()))

    async def look(self) -> tuple[ConsumerState, Watermark]:
        """Compare numbers; returns the server's state, and up to where the inbox was complete before."""
        mark = await self._order.watermark(*self._names)
        state = await self._consumer.state()
        # Mark first, then state: a server that has not gone back is never behind an earlier mark.
        if mark.consumer_seq is not None and state.consumer_seq < mark.consumer_seq:
            mark = await self._order.move(
                *self._names, lambda mark: mark.rewound(state.consumer_seq, state.delivered)
            )
        return state, mark

    async def compared(self, state: ConsumerState, upto: int) -> None:
        """Note that the inbox holds all messages up to ``upto`` that were delivered when ``state`` was read."""
        number = state.consumer_seq if upto >= state.delivered else None
        await self._order.move(*self._names, lambda mark: mark.compared(number, upto))


@dataclass(frozen=True, slots=True)
class NextOfKey:
    """Continues a key after a finished message: enqueues its next message, acknowledges what is parked."""

    order: OrderedInboxAdapter
    consumer: JetStreamConsumer
    enqueue: Enqueue

    async def after(self, *rows: InboxRow) -> None:
        """Enqueue the next message of each row's key. If this fails, the sweep does it within seconds."""
        keys = [row.order_key for row in rows if row.order_key is not None]
        if not keys:
            return
        try:
            if following := await self.order.next_of_keys(rows[0].subscription, keys):
                await self.enqueue(following)
        except Outage:
            return

    async def after_death(self, row: InboxRow) -> None:
        """Do the same after a dead letter, and acknowledge the messages that are parked with its key."""
        await self.after(row)
        try:
            if row.order_key is not None and (replies := await self.order.parked_replies(row)):
                await self.consumer.ack(replies)
        except Outage:
            # The next run of recovery acknowledges them.
            return
