"""The pull job: JetStream → inbox table → queue (DESIGN §6)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final
from uuid import UUID

from consumer.key_order import DeliveryNumbers
from consumer.window import Window
from relay import jobs
from relay.adapters.dramatiq.broker import RelayBroker
from relay.adapters.postgres.ordered_inbox import OrderedInboxAdapter
from relay.domain import traceparent
from relay.domain.backpressure import InboxLimit
from relay.domain.controls import Controls, What, uncontrolled
from relay.domain.envelopes import Envelope, Incoming, decode, headers_of
from relay.domain.errors import DatabaseUnreachable, MalformedMessage, Outage
from relay.domain.expiry import EXPIRES_AT, read_expiry
from relay.domain.facts import FactSink, MessagesReceived, OutageSeen, PullsPaused, PullsResumed
from relay.domain.identity import stand_in_id
from relay.domain.ordering import order_key, partition_key
from relay.domain.policies import DeadLetter, DeadLetterClass
from relay.failpoints import reach
from relay.ports import Delivery, InboxReceiver, InboxRow, Inserted, JetStreamConsumer

#: How many messages of a subscription may be ready to be handled before its job fetches no more.
MAX_DUE: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PullTimes:
    """How long a pull job waits, and how often it tries.

    ``fetch``: how long JetStream holds a request for messages. ``insert_pause``: between two tries to insert a
    batch, in seconds. After ``insert_attempts`` tries the batch goes back to the stream, for ``nak_delay``.
    ``workers_busy``: the pause while the workers have enough to do, in seconds. ``rest``: after a count that found
    the inbox full, the job rests for so many times as long as the count took. ``resting``: how often to look,
    while the subscription is paused, whether it goes on, in seconds.
    """

    fetch: timedelta = timedelta(seconds=2)
    insert_pause: float = 0.5
    insert_attempts: int = 20
    nak_delay: timedelta = timedelta(seconds=2)
    workers_busy: float = 0.1
    rest: float = 20.0
    resting: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConfig:
    """What one subscription fetches and how its messages are read.

    ``ack_on_receipt``: acknowledge a message once its row is committed (``settle = "inbox"``). Then JetStream does
    not limit how much waits. So the job does not fetch while ``max_due`` rows are ready to be handled.
    ``max_inbox``: the job ends while so many rows are unfinished, including those in back-off.
    ``limited``: whether a limit is configured. ``expires_in``: how long after it occurred a message is worth
    handling. ``apart``: another subscription reads the same messages and has their ids as keys, so here keys are
    apart.
    """

    context: str
    subscription: str
    envelope: Envelope | str
    batch_size: int
    ack_on_receipt: bool = False
    max_due: int = MAX_DUE
    max_inbox: int | None = None
    limited: bool = False
    apart: bool = False
    expires_in: timedelta | None = None


@dataclass(slots=True, kw_only=True)
class PullMessages:
    """Moves messages from a durable consumer into the inbox and hands their ids to ``enqueue``.

    The inbox row is committed before anything else happens to a message. A lost queue entry is harmless,
    because the sweep finds the row. ``order`` and ``numbers``: set if the subscription is ordered. ``window``: set
    if messages are acknowledged after their handler. ``controls``: what operators have paused; while that is this
    subscription, the job stays and fetches nothing.
    """

    config: PullConfig
    inbox: InboxReceiver
    consumer: JetStreamConsumer
    enqueue: Callable[[Sequence[UUID]], Awaitable[None]]
    facts: FactSink
    order: OrderedInboxAdapter | None = None
    numbers: DeliveryNumbers | None = None
    window: Window | None = None
    controls: Callable[[], Awaitable[Controls]] = uncontrolled
    times: PullTimes = PullTimes()
    _limit: InboxLimit | None = field(init=False, default=None)
    _rest_until: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        if self.config.max_inbox is not None:
            self._limit = InboxLimit(self.config.max_inbox)

    @property
    def _about(self) -> dict[str, Any]:
        return {"context": self.config.context, "subscription": self.config.subscription}

    async def run(self, go_on: Callable[[], bool]) -> int:
        """Pull until ``go_on`` returns False, or the inbox is full; returns how many messages were new.

        Raises BrokerUnreachable and DatabaseUnreachable. Nothing is fetched while the database is down,
        because every delivery that cannot be stored counts against the consumer's ``max_deliver``.
        """
        total = 0
        await self.inbox.ping()
        if self._limit is not None:
            self._limit.room = 0  # another process may have pulled meanwhile
        try:
            while go_on() and not await self._is_paused():
                controls = await self.controls()
                if controls.is_paused(What.SUBSCRIPTION, self.config.subscription):
                    await asyncio.sleep(self.times.resting)
                    continue
                limited = self.config.limited or controls.limit(What.SUBSCRIPTION, self.config.subscription)
                if await self._is_full(limited=bool(limited)):
                    await asyncio.sleep(self.times.workers_busy)
                    continue
                if self.numbers is not None:
                    await self.numbers.before_fetch()
                deliveries = await self.consumer.fetch(self.config.batch_size, self.times.fetch)
                total += await self._fetched(deliveries)
                if not deliveries and self.window is not None:
                    await self.window.nothing_came()
        finally:
            total += await self._fetched(await self.consumer.finish())
        return total

    async def _fetched(self, deliveries: Sequence[Delivery]) -> int:
        if not deliveries:
            return 0
        if self.numbers is not None:
            await self.numbers.after_fetch()
        # What is acknowledged later is delivered again if a crash of the server takes it back.
        count = await self.accept(deliveries, lasting=self.config.ack_on_receipt)
        if self.window is not None:
            self.window.came()
        return count

    async def _is_full(self, *, limited: bool) -> bool:
        """Return whether the workers have enough to do.

        Messages that wait for a retry do not count, unless a limit makes messages wait, too.
        """
        if not self.config.ack_on_receipt:
            return False
        limit = self.config.max_due
        return await self.inbox.due(self.config.subscription, limit, later=limited) >= limit

    async def _is_paused(self) -> bool:
        """Return whether the inbox is full. It is counted again when as many were pulled as there was room for."""
        if self._limit is None or self._limit.room > 0:
            return False
        begun = time.monotonic()
        if begun < self._rest_until:
            return True
        changed = self._limit.counted(await self.inbox.due(self.config.subscription, self._limit.most, later=True))
        paused = self._limit.paused
        if paused:
            self._rest_until = begun + self.times.rest * (time.monotonic() - begun)
        if changed:
            resumed = PullsResumed(**self._about)
            self.facts(PullsPaused(**self._about, max_inbox=self._limit.most) if paused else resumed)
        return paused

    async def accept(self, deliveries: Sequence[Delivery], *, lasting: bool = True) -> int:
        """Put a batch into the inbox; returns how many messages were new to it. ``lasting``: see the port."""
        reach("after_fetch_before_insert")
        begun = time.time()
        rows = [self._row(delivery) for delivery in deliveries]
        inserted = await self._insert(rows, lasting=lasting)
        if ends := self._ends(rows):
            known = {it.message_id: ends[it.id] for it in inserted if it.id in ends}
            await self.inbox.note_expiry(known, self.config.expires_in)
        settled = self._settled(rows, inserted)
        if settled:
            await self.consumer.ack(settled)
        new = [row.id for row in inserted if row.new]
        if self._limit is not None:
            self._limit.room -= len(new)
        about: dict[str, Any] = {"received": len(deliveries), "duplicates": len(deliveries) - len(new)}
        traces = [it for row in rows if (it := traceparent.find(row.headers)) is not None]
        waits = _waits(deliveries, rows, {*new}, begun)
        self.facts(MessagesReceived(**self._about, **about, traces=traces, begun=begun, waits=waits))
        if new:
            await self._hand_over(inserted)
        return len(new)

    def _ends(self, rows: Sequence[InboxRow]) -> dict[UUID, datetime | None]:
        """Until when messages are worth handling: those that say so, or all if the subscription does."""
        if self.config.expires_in is not None:
            return {row.id: read_expiry(row.headers.get(EXPIRES_AT, "")) for row in rows}
        return {row.id: read_expiry(row.headers[EXPIRES_AT]) for row in rows if EXPIRES_AT in row.headers}

    def _settled(self, rows: Sequence[InboxRow], inserted: Sequence[Inserted]) -> list[str]:
        """Return the reply subjects to acknowledge, now that the rows are committed."""
        if self.config.ack_on_receipt:
            return [row.ack_subject for row in rows]
        done = {row.id for row in inserted if row.done or row.parked}
        if not done:
            return []
        ids = [_ids(row) for row in rows]
        if not done.issubset(chain.from_iterable(ids)):
            # Some have the id of their content, because another message had their place.
            ids = [(*pair, row.anew().id) for pair, row in zip(ids, rows, strict=True)]
        return [row.ack_subject for pair, row in zip(ids, rows, strict=True) if not done.isdisjoint(pair)]

    async def _hand_over(self, inserted: Sequence[Inserted]) -> None:
        try:
            if ids := await self._runnable(inserted):
                await self.enqueue(ids)
            reach("after_enqueue")
        except Outage as error:
            # The rows are committed, so the sweep enqueues them once the server is back.
            self.facts(OutageSeen(context=self.config.context, server=error.server, error=error.explanation))

    async def _runnable(self, inserted: Sequence[Inserted]) -> list[UUID]:
        """Return the new messages that may run.

        An earlier message of a key may have finished during the insert, so waiting messages are checked again.
        """
        runnable = [row.message_id for row in inserted if row.new and row.runnable and not row.parked]
        behind = [row.message_id for row in inserted if row.new and not row.runnable]
        if behind and self.window is not None:
            self.window.wait_begins()
        if behind and self.order is not None:
            runnable += await self.order.promote(behind)
        return runnable

    async def _insert(self, rows: Sequence[InboxRow], *, lasting: bool = True) -> list[Inserted]:
        """Insert a batch, and retry in an outage; a batch that cannot be inserted goes back to the stream."""
        replies = [row.ack_subject for row in rows]
        for _ in range(self.times.insert_attempts):
            try:
                inserted = await self.inbox.insert(rows, lasting=lasting)
                reach("after_inbox_insert")
            except MalformedMessage as error:
                return await self._insert_apart(rows, error)
            except DatabaseUnreachable as error:
                self.facts(OutageSeen(context=self.config.context, server="postgresql", error=error.explanation))
                await self.consumer.in_progress(replies)
                await asyncio.sleep(self.times.insert_pause)
            else:
                return list(inserted)
        await self.consumer.nak(replies, self.times.nak_delay)
        raise DatabaseUnreachable("the inbox did not take a batch; it was given back to the stream")

    async def _insert_apart(self, rows: Sequence[InboxRow], error: MalformedMessage) -> list[Inserted]:
        """Insert rows one by one, so that a row which PostgreSQL refuses does not fail the whole batch."""
        if len(rows) == 1:
            return await self._insert([_rejected(rows[0], error)])
        inserted = []
        for row in rows:
            inserted += await self._insert([row])
        return inserted

    def _row(self, delivery: Delivery) -> InboxRow:
        row = self._read_row(delivery)
        return row.apart() if self.config.apart else row

    def _read_row(self, delivery: Delivery) -> InboxRow:
        """Turn a delivery into a row. If it cannot be read now, it never can: its row is a dead letter."""
        place: dict[str, Any] = {
            "subject": delivery.subject,
            "subscription": self.config.subscription,
            "stream": delivery.stream,
            "stream_seq": delivery.stream_seq,
            "ack_subject": delivery.reply,
            "body": delivery.body,
            "headers": delivery.headers,
            "consumer_seq": delivery.consumer_seq,
        }
        try:
            event = self._read(delivery)
        except MalformedMessage as error:
            id = stand_in_id(delivery.stream, delivery.stream_seq)
            place["order_key"] = self._order_key(delivery)
            return InboxRow(message_id=id, rejected=DeadLetter(str(error), DeadLetterClass.POISON), **place)
        place["headers"] = headers_of(event, delivery.headers)
        return InboxRow(
            message_id=event.message_id,
            event_type=event.event_type,
            event_version=event.event_version,
            occurred_at=event.occurred_at or delivery.stored_at,
            partition_key=event.partition_key,
            correlation_id=event.correlation_id,
            causation_id=event.causation_id,
            originals=event.originals,
            order_key=None if self.order is None else order_key(event.partition_key),
            **place,
        )

    def _read(self, delivery: Delivery) -> Incoming:
        """Read a delivery. Raises MalformedMessage."""
        if not delivery.legible:
            raise MalformedMessage("holds bytes that are no text, shown escaped", field="subject")
        return decode(self.config.envelope, delivery.subject, delivery.headers, delivery.body)

    def _order_key(self, delivery: Delivery) -> str | None:
        """Return the key of an unreadable message: as a dead letter it still blocks its key."""
        if self.order is None:
            return None
        try:
            return order_key(partition_key(delivery.headers))
        except MalformedMessage:
            return None


async def enqueue_chunks(
    broker: RelayBroker, context: str, subscription: str, size: int, ids: Sequence[UUID]
) -> None:
    """Enqueue messages for the workers, ``size`` with each job. Raises QueueUnreachable."""
    texts = [str(id) for id in ids]
    chunks = [texts[first : first + size] for first in range(0, len(texts), size)]
    messages = [jobs.handle(context, subscription, chunk) for chunk in chunks]
    await asyncio.to_thread(broker.enqueue_many, messages)


def _ids(row: InboxRow) -> tuple[UUID, ...]:
    """Return both ids that the inbox may know a message by: its own, or the stand-in of a refused message."""
    return row.id, stand_in_id(row.stream, row.stream_seq)


def _rejected(row: InboxRow, error: MalformedMessage) -> InboxRow:
    """Return a refused row as a dead letter, without the parts that PostgreSQL may have refused."""
    if row.rejected is not None and not row.headers:
        raise error
    refused = InboxRow(
        message_id=stand_in_id(row.stream, row.stream_seq),
        subject=row.subject,
        subscription=row.subscription,
        stream=row.stream,
        stream_seq=row.stream_seq,
        ack_subject=row.ack_subject,
        body=row.body,
        headers={},
        order_key=row.order_key,
        consumer_seq=row.consumer_seq,
        rejected=row.rejected or DeadLetter(str(error), DeadLetterClass.POISON),
    )
    return refused if row.source_id is None else refused.apart()


def _waits(deliveries: Sequence[Delivery], rows: Sequence[InboxRow], new: set[UUID], now: float) -> list[float]:
    """How long the new messages of a batch were in the stream, in seconds."""
    stored = [it.stored_at for it, row in zip(deliveries, rows, strict=True) if row.id in new]
    return [max(0.0, now - at.timestamp()) for at in stored if at is not None]
