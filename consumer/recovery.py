"""Finds gaps, the messages of a stream that should be in the inbox and are not, and fills them.

No single source shows all gaps, so there are three searches:

- `Recovery.recover` compares what JetStream holds open with the inbox. Within seconds it finds the messages that a
  worker had when it died (promise 8). JetStream would redeliver them after the ack wait, two minutes by the
  specification. Until then, a few of them stall a subscription with a small ``max_ack_pending``.
- `Recovery.rescue` reads advisories about messages past ``max_deliver``. The server forgets these, and its
  acknowledgement floor passes over them (docs/decisions/0015).
- `Recovery.reconcile` compares what is acknowledged with the inbox, which may have lost rows in a failover.

Each may be repeated, and may run beside a pull job, because the inbox takes a message only once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from consumer.key_order import DeliveryNumbers
from consumer.pull import PullMessages
from consumer.window import Window
from relay.adapters.jetstream.stream_reader import StreamReader
from relay.commands.reconcile import HORIZON, FindMissing, Stored
from relay.domain.errors import Outage
from relay.domain.facts import DeliveriesRecovered, DeliveryExhausted, FactSink, InboxGapFilled
from relay.domain.identity import stand_in_id
from relay.domain.model import Finished
from relay.domain.watermark import Watermark
from relay.ports import ConsumerState, Delivery, InboxRepository, JetStreamConsumer

#: PostgreSQL stores no sequence as large as this.
_NO_LIMIT: Final = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryLimits:
    """How long recovery waits, and how much it compares.

    ``patience``: how long a delivery may take from JetStream to the inbox before it counts as lost. ``range``:
    how many sequences of an ordered subscription are compared at a time. ``recent``: older messages that JetStream
    has settled are not read. ``advisories``: how many are read at a time. ``wait``: for the first of them.
    """

    patience: timedelta = timedelta(seconds=2)
    range: int = 50_000
    recent: timedelta = HORIZON
    advisories: int = 100
    wait: timedelta = timedelta(milliseconds=200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Finds and fills the gaps of one subscription. Its methods raise BrokerUnreachable and DatabaseUnreachable.

    ``numbers``: set if the subscription is ordered. ``on_receipt``: a message in the inbox is acknowledged,
    finished or not (``settle = "inbox"``). ``window``: set otherwise.
    """

    context: str
    subscription: str
    stream: str
    inbox: InboxRepository
    consumer: JetStreamConsumer
    reader: StreamReader
    pull: PullMessages
    facts: FactSink
    numbers: DeliveryNumbers | None = None
    on_receipt: bool = False
    window: Window | None = None
    limits: RecoveryLimits = RecoveryLimits()

    async def insert_missed(self, seqs: Sequence[int], settled: int = 0, since: datetime | None = None) -> int:
        """Put the consumer's own messages among ``seqs``, in order, into the inbox as a pull would.

        Returns how many were new to it. Other sequences belong to other filters, or have left the stream. Of
        what JetStream has ``settled``, only recent messages are read: the inbox need not keep older rows. What was
        stored before ``since`` is not the consumer's.
        """
        new, missed, cursor = 0, set(seqs), 0
        for seq in seqs:
            if seq < cursor:
                continue
            delivery = await self.reader.next(seq)
            if delivery is None or delivery.stream_seq > seqs[-1]:
                break
            cursor = delivery.stream_seq + 1
            if (
                delivery.stream_seq in missed
                and (delivery.stream_seq > settled or self._is_recent(delivery))
                and (since is None or delivery.stored_at is None or delivery.stored_at >= since)
            ):
                new += await self.pull.accept([delivery])
        return new

    def _is_recent(self, delivery: Delivery) -> bool:
        return delivery.stored_at is not None and delivery.stored_at > datetime.now(UTC) - self.limits.recent

    async def recover(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> int:
        """Compare what JetStream holds open with the inbox once; returns how many messages were recovered.

        A message that is missing at first gets two seconds to arrive, in ``sleep``. Finished messages are
        acknowledged again. In an ordered subscription the watermark moves forward.
        """
        before, mark = (await self.consumer.state(), None) if self.numbers is None else await self.numbers.look()
        if self.window is not None:
            await self.window.seen(before)
        if before.pending == 0 and _has_arrived(before, mark):
            return 0
        after, upto = _range(before, mark, self.limits.range)
        suspects = await self._missing(after, upto)
        if not suspects:
            await self._compared(before, upto)
            if before.pending == 0:
                return 0
        await sleep(self.limits.patience.total_seconds())
        now, recovered = await self.consumer.state(), 0
        if suspects:
            after = max(after, now.ack_floor) if mark is None else after
            missing = await self._missing(after, upto)
            recovered = await self.insert_missed(missing, before.ack_floor, before.since)
            await self._compared(before, upto)
        if now.pending:
            recovered += await self._acknowledge_again(now.ack_floor, before.delivered)
        if recovered:
            self.facts(DeliveriesRecovered(context=self.context, subscription=self.subscription, count=recovered))
        return recovered

    async def rescue(self, advisories: JetStreamConsumer) -> int:
        """Put the messages that waiting advisories name into the inbox; returns how many were new to it.

        An advisory is acknowledged only after its message is in the inbox. There the row's own attempts decide.
        In an outage it is given back at once, for the next run.
        """
        new, full = 0, True
        while full:
            batch = [*await advisories.fetch(self.limits.advisories, self.limits.wait), *await advisories.finish()]
            full = len(batch) >= self.limits.advisories
            named = {advisory.reply: seq for advisory in batch if (seq := _named(advisory)) is not None}
            try:
                new += await self.insert_missed(sorted(set(named.values())))
            except Outage:
                await advisories.nak([*named], timedelta())
                raise
            await advisories.ack([*named])
            await advisories.terminate([it.reply for it in batch if it.reply not in named], "names no message")
            for seq in named.values():
                self.facts(DeliveryExhausted(context=self.context, subscription=self.subscription, stream_seq=seq))
        return new

    async def reconcile(self, find: FindMissing, page: int | None = None) -> int:
        """Compare a page of what is acknowledged, or everything; returns how many were inserted."""
        count = await self.insert_missed((await find.run(page)).missing)
        if count:
            self.facts(InboxGapFilled(context=self.context, subscription=self.subscription, count=count))
        return count

    async def _missing(self, after: int, upto: int) -> Sequence[int]:
        return await self.inbox.missing(self.subscription, self.stream, after, upto) if after < upto else []

    async def _compared(self, state: ConsumerState, upto: int) -> None:
        if self.numbers is not None:
            await self.numbers.compared(state, upto)

    async def _acknowledge_again(self, after: int, upto: int) -> int:
        """Acknowledge finished messages; returns how many new messages were found at their sequences instead.

        A stream that lost its end assigns the same sequences again.
        """
        finished = await self.inbox.finished(
            self.subscription, self.stream, after, upto, on_receipt=self.on_receipt
        )
        if not finished:
            return 0
        there = await self.reader.stored(finished[0].stream_seq, finished[-1].stream_seq)
        replaced = [it for it in finished if _is_replaced(it, self.stream, there)]
        await self.consumer.ack([it.reply for it in finished if it not in replaced])
        return await self.insert_missed([it.stream_seq for it in replaced])


def _has_arrived(state: ConsumerState, mark: Watermark | None) -> bool:
    """Return whether the inbox holds all that is not pending. Without order: yes.

    The acknowledgement floor does not show this, because it passes over messages past ``max_deliver``.
    Without order nobody knows this, and `Recovery.rescue` finds the rest.
    """
    return mark is None or (mark.consumer_seq is not None and mark.consumer_seq >= state.consumer_seq)


def _range(state: ConsumerState, mark: Watermark | None, size: int) -> tuple[int, int]:
    """Return the range to compare: from the ack floor. With order: from the watermark, at most ``size`` messages.

    If the watermark lies further back, ``order`` was switched on later: then from the ack floor. Messages before
    the consumer's start are no gap.
    """
    if mark is None:
        return state.ack_floor, state.delivered
    complete = max(mark.stream_seq, state.first - 1)
    after = complete if state.ack_floor - complete <= size else state.ack_floor
    return after, max(after, min(state.delivered, after + size))


def _is_replaced(message: Finished, stream: str, there: Mapping[int, Stored]) -> bool:
    """Return whether another message has its sequence now. Not known for a message with only a stand-in id."""
    stored = there.get(message.stream_seq)
    if stored is None or message.message_id == stand_in_id(stream, message.stream_seq):
        return False
    return stored.message_id != message.message_id and stored.msg_id != message.msg_id


def _named(advisory: Delivery) -> int | None:
    """Return the sequence that an advisory names; None if the server did not write the advisory."""
    try:
        seq = json.loads(advisory.body)["stream_seq"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return seq if type(seq) is int and 0 < seq < _NO_LIMIT else None
