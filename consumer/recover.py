"""Deliveries that went down with their worker (promise 8: recovery within ten seconds).

JetStream would deliver them again only after the ack wait, two minutes by the specification, and with a
small ``max_ack_pending`` a handful of them stalls the whole subscription until then. So the range that
the consumer holds open is compared with the inbox: what never arrived is read from the stream, what is
finished is acknowledged again. Of an ordered subscription the watermark moves to where it was compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from consumer.order import WatchNumbers
from consumer.pull import PullMessages
from consumer.rescue import MessageReader
from relay.domain.facts import DeliveriesRecovered, FactSink
from relay.domain.model import Finished, stand_in_id
from relay.ports import ConsumerState, InboxRepository, JetStreamConsumer

#: How long a delivery may take from JetStream to the inbox before it counts as lost.
PATIENCE: Final = timedelta(seconds=2)
#: How much of an ordered subscription is compared at a time; the watermark follows.
_STRETCH: Final = 50_000


@dataclass(frozen=True, slots=True)
class RecoverConfig:
    """Whose deliveries are recovered.

    ``on_receipt``: a message in the inbox is acknowledged, finished or not (``settle = "inbox"``).
    """

    context: str
    subscription: str
    on_receipt: bool = False


class RecoverDeliveries:
    """Repeatable, and harmless beside a live pull job: the inbox takes a message once."""

    def __init__(
        self,
        config: RecoverConfig,
        inbox: InboxRepository,
        consumer: JetStreamConsumer,
        reader: MessageReader,
        pull: PullMessages,
        facts: FactSink,
        watch: WatchNumbers | None = None,
    ) -> None:
        self._context = config.context
        self._subscription = config.subscription
        self._inbox = inbox
        self._consumer = consumer
        self._reader = reader
        self._pull = pull
        self._facts = facts
        self._on_receipt = config.on_receipt
        self._watch = watch

    async def run(self, stream: str) -> int:
        """Compare once; returns how many messages were recovered.

        Raises BrokerUnreachable and DatabaseUnreachable. A message on its way at the first look is given
        two seconds to arrive.
        """
        before = await (self._consumer.state() if self._watch is None else self._watch.look())
        if _all_acknowledged(before):
            await self._compared(before, before.delivered)
        if self._is_done(before):
            return 0
        after, upto = await self._range(before)
        suspects = await self._inbox.missing(self._subscription, stream, after, upto)
        if not suspects:
            await self._compared(before, upto)
        await asyncio.sleep(PATIENCE.total_seconds())
        now = await self._consumer.state()
        if self._is_done(now):
            return 0
        recovered = 0
        if suspects:
            after = max(after, now.floor)
            recovered = await self._take_up(await self._inbox.missing(self._subscription, stream, after, upto))
            await self._compared(before, upto)
        finished = await self._inbox.finished(
            self._subscription, stream, now.floor, before.delivered, on_receipt=self._on_receipt
        )
        recovered += await self._acknowledge(stream, finished)
        if recovered:
            self._facts(
                DeliveriesRecovered(context=self._context, subscription=self._subscription, count=recovered)
            )
        return recovered

    def _is_done(self, state: ConsumerState) -> bool:
        """Whether nothing is left to compare. Where order is kept, what was delivered too often is."""
        return state.pending == 0 and (self._watch is None or _all_acknowledged(state))

    async def _range(self, state: ConsumerState) -> tuple[int, int]:
        """What to compare. Where order is kept, from the watermark on and a stretch at a time, none left out."""
        if self._watch is None:
            return state.floor, state.delivered
        after = max(state.floor, (await self._watch.mark()).stream_seq)
        return after, max(after, min(state.delivered, after + _STRETCH))

    async def _compared(self, state: ConsumerState, upto: int) -> None:
        if self._watch is not None:
            await self._watch.compared(state, upto)

    async def _acknowledge(self, stream: str, finished: Sequence[Finished]) -> int:
        """Acknowledge what is still at its place; returns how many new messages were found there instead.

        A stream that lost its end gives the same sequences out again.
        """
        if not finished:
            return 0
        there = await self._reader.ids(finished[0].stream_seq, finished[-1].stream_seq)
        gone = [it for it in finished if _is_replaced(it, stream, there)]
        await self._consumer.ack([it.reply for it in finished if it not in gone])
        return await self._take_up([it.stream_seq for it in gone])

    async def _take_up(self, lost: Sequence[int]) -> int:
        """Read the consumer's own messages among the ``lost`` sequences; others belong to other filters."""
        recovered, wanted, cursor = 0, set(lost), 0
        for seq in lost:
            if seq < cursor:
                continue
            delivery = await self._reader.next(seq)
            if delivery is None or delivery.stream_seq > lost[-1]:
                break
            cursor = delivery.stream_seq + 1
            if delivery.stream_seq in wanted:
                recovered += await self._pull.accept([delivery])
        return recovered


def _all_acknowledged(state: ConsumerState) -> bool:
    """Not merely that none is pending: what was delivered too often is not, and may not have arrived."""
    return state.pending == 0 and state.floor >= state.delivered


def _is_replaced(message: Finished, stream: str, there: Mapping[int, UUID | None]) -> bool:
    """Whether another message has taken its place. One known by its place alone cannot be told apart."""
    known = (message.message_id, stand_in_id(stream, message.stream_seq))
    return (
        message.stream_seq in there and there[message.stream_seq] not in known and message.message_id != known[1]
    )
