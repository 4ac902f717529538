"""Deliveries that went down with their worker (promise 8: recovery within ten seconds).

JetStream would deliver them again only after the ack wait, two minutes by the specification, and with a
small ``max_ack_pending`` a handful of them stalls the whole subscription until then. So the range that
the consumer holds open is compared with the inbox: what never arrived is read from the stream, what is
finished is acknowledged again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from consumer.pull import PullMessages
from consumer.rescue import MessageReader
from relay.domain.facts import DeliveriesRecovered, FactSink
from relay.ports import ConsumerState, InboxRepository, JetStreamConsumer

#: How long a delivery may take from JetStream to the inbox before it counts as lost.
PATIENCE: Final = timedelta(seconds=2)


class RecoverDeliveries:
    """Repeatable, and harmless beside a live pull job: the inbox takes a message once.

    ``on_receipt``: a message in the inbox is acknowledged, finished or not (``settle = "inbox"``).
    """

    def __init__(
        self,
        context: str,
        subscription: str,
        inbox: InboxRepository,
        consumer: JetStreamConsumer,
        reader: MessageReader,
        pull: PullMessages,
        facts: FactSink,
        *,
        on_receipt: bool = False,
    ) -> None:
        self._context = context
        self._subscription = subscription
        self._inbox = inbox
        self._consumer = consumer
        self._reader = reader
        self._pull = pull
        self._facts = facts
        self._on_receipt = on_receipt

    async def run(self, stream: str) -> int:
        """Compare once; returns how many messages were recovered.

        Raises BrokerUnreachable and DatabaseUnreachable. A message on its way at the first look is given
        two seconds to arrive.
        """
        before = await self._consumer.state()
        if before.pending == 0:
            return 0
        suspects = await self._missing(stream, before, before.delivered)
        await asyncio.sleep(PATIENCE.total_seconds())
        now = await self._consumer.state()
        if now.pending == 0:
            return 0
        lost = await self._missing(stream, now, before.delivered) if suspects else []
        recovered = await self._take_up(lost)
        replies = await self._inbox.finished(
            self._subscription, stream, now.floor, before.delivered, on_receipt=self._on_receipt
        )
        await self._consumer.ack(replies)
        if recovered:
            self._facts(
                DeliveriesRecovered(context=self._context, subscription=self._subscription, count=recovered)
            )
        return recovered

    async def _missing(self, stream: str, state: ConsumerState, upto: int) -> Sequence[int]:
        return await self._inbox.missing(self._subscription, stream, state.floor, upto)

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
