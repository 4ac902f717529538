"""Recovers deliveries that were lost with their worker (promise 8: recovery within ten seconds).

JetStream redelivers them only after the ack wait, two minutes by the specification. With a small
``max_ack_pending`` a few of them stall the whole subscription until then. So this job compares the range
that the consumer holds open with the inbox. Messages that never arrived are read from the stream.
Finished messages are acknowledged again. In an ordered subscription the watermark then moves forward.
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
from relay.domain.identity import stand_in_id
from relay.domain.model import Finished
from relay.ports import ConsumerState, InboxRepository, JetStreamConsumer

#: How long a delivery may take from JetStream to the inbox before it counts as lost.
PATIENCE: Final = timedelta(seconds=2)
#: How many sequences of an ordered subscription are compared at a time; the watermark follows.
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
    """Recovers deliveries. Safe to repeat and beside a live pull job: the inbox takes a message once."""

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

        A message that is missing at first gets two seconds to arrive.
        Raises BrokerUnreachable and DatabaseUnreachable.
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
        """Tell whether nothing is left to compare.

        With order, messages past ``max_deliver`` are compared too, though they are not pending.
        """
        return state.pending == 0 and (self._watch is None or _all_acknowledged(state))

    async def _range(self, state: ConsumerState) -> tuple[int, int]:
        """Return the range to compare. With order it starts at the watermark and is at most one stretch long."""
        if self._watch is None:
            return state.floor, state.delivered
        after = max(state.floor, (await self._watch.mark()).stream_seq)
        return after, max(after, min(state.delivered, after + _STRETCH))

    async def _compared(self, state: ConsumerState, upto: int) -> None:
        if self._watch is not None:
            await self._watch.compared(state, upto)

    async def _acknowledge(self, stream: str, finished: Sequence[Finished]) -> int:
        """Acknowledge finished messages; returns how many new messages were found at their sequences instead.

        A stream that lost its end assigns the same sequences again.
        """
        if not finished:
            return 0
        there = await self._reader.ids(finished[0].stream_seq, finished[-1].stream_seq)
        gone = [it for it in finished if _is_replaced(it, stream, there)]
        await self._consumer.ack([it.reply for it in finished if it not in gone])
        return await self._take_up([it.stream_seq for it in gone])

    async def _take_up(self, lost: Sequence[int]) -> int:
        """Insert the consumer's own messages among the ``lost`` sequences; the rest belong to other filters."""
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
    """Tell whether every delivery is acknowledged.

    ``pending`` 0 is not enough: a message past ``max_deliver`` is not pending and may not be in the inbox.
    """
    return state.pending == 0 and state.floor >= state.delivered


def _is_replaced(message: Finished, stream: str, there: Mapping[int, UUID | None]) -> bool:
    """Tell whether another message has its sequence now. Unknown for a message with only a stand-in id."""
    known = (message.message_id, stand_in_id(stream, message.stream_seq))
    return (
        message.stream_seq in there and there[message.stream_seq] not in known and message.message_id != known[1]
    )
