"""Reconcile: compare the PubAcks with what the streams hold (DESIGN §9, reliability §1).

JetStream can lose acknowledged messages: the store was restored from a backup, the disk lost writes, or the
stream was deleted and made again. The outbox still has these events. After a loss the stream gives the same
sequences to other events. So an event is recognised by the id at its place, never by the place alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol
from uuid import UUID

from relay.domain.errors import MalformedMessage
from relay.domain.facts import FactSink, StreamLossFound
from relay.domain.identity import EVENT_ID, MSG_ID, Id, NatsMsgId, stand_in_id
from relay.domain.ordering import KEY
from relay.ports import JetStreamConsumer

#: How often a page of each stream is compared, with the ledger and with the inbox.
EVERY: Final = timedelta(seconds=30)
_MAX_IDS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLimits:
    """How much is compared at a time, and with how much patience.

    ``page``: how many sequences. ``recent``: how many of the latest ledger entries are searched for sequences that
    were assigned twice. ``confirm``: after so long a loss is checked again, because a leader of a cluster that is
    behind may have answered.
    """

    page: int = 1_000
    recent: int = 100_000
    confirm: timedelta = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedStream:
    """The current state of a stream. ``max_age`` None: messages stay for ever."""

    first_seq: int
    last_seq: int
    created: datetime | None
    max_age: timedelta | None
    duplicate_window: timedelta


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in the stream: its place, its Nats-Msg-Id, its time of storage, and the bytes of its subject.

    ``event_id``: the row of the outbox that it came from; None if it is not one of ours. ``message_id``: the id in
    an inbox, if the inbox keeps it by its Nats-Msg-Id. ``marked``: whether it has a header of our publisher.
    """

    seq: int
    msg_id: str | None
    at: datetime
    subject: bytes = b""
    event_id: UUID | None = None
    message_id: UUID | None = None
    marked: bool = False

    @classmethod
    def of(cls, seq: int, headers: Mapping[str, str], at: datetime, subject: bytes) -> Stored:
        """Read the headers of a message. If its id is not valid, it has no ids."""
        msg_id = headers.get(MSG_ID)
        try:
            sent = NatsMsgId.read(headers)
        except MalformedMessage:
            sent = None
        if sent is None:
            return cls(seq, msg_id, at, subject)
        marked = EVENT_ID in headers or KEY in headers
        return cls(seq, msg_id, at, subject, sent.event_id, sent.id.uuid, marked)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """An event and the sequence in its PubAck. ``text``: its id, if that is no UUID."""

    id: UUID
    seq: int
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Losses:
    """How many events are lost, and the ids of the first ones."""

    count: int = 0
    ids: Sequence[Id] = ()

    def __add__(self, other: Losses) -> Losses:
        """Add two results."""
        return Losses(self.count + other.count, (*self.ids, *other.ids)[:_MAX_IDS])


class Progress(Protocol):
    """Shows how much is done, and of how much."""

    def __call__(self, done: int, total: int, /) -> object:
        """Show it."""


def nobody(_done: int, _total: int, /) -> None:
    """Show it to nobody."""


class StreamAuditor(Protocol):
    """Reads what a stream holds. Both methods raise BrokerUnreachable."""

    async def state(self, stream: str) -> AuditedStream | None:
        """The state of a stream; None if it does not exist."""

    async def stored(
        self, stream: str, first: int, last: int, filter_subject: str | None = None
    ) -> Sequence[Stored]:
        """The messages from ``first`` to ``last``, both included, in order, without payloads."""


class PublishLedger(Protocol):
    """The PubAcks of one context. All methods raise DatabaseUnreachable.

    ``before`` excludes events that were published after the ledger was read. Events older than the stream's
    ``max_age`` are also excluded.
    """

    async def streams(self) -> Sequence[str]:
        """The streams that events were published to."""

    async def highest(self, stream: str) -> tuple[int, datetime]:
        """The highest recorded sequence, 0 if there is none, and the database's time of this read."""

    async def beyond(self, stream: str, state: AuditedStream, before: datetime, *, republish: bool) -> Losses:
        """The events recorded beyond the stream's last message. ``republish`` also marks them unpublished."""

    async def page(
        self, stream: str, state: AuditedStream, first: int, last: int, before: datetime, limit: int
    ) -> Sequence[LedgerEntry]:
        """Up to ``limit`` entries from ``first`` to ``last``, both included, in order of their sequence."""

    async def reused(self, stream: str, state: AuditedStream, limit: int) -> tuple[int, int] | None:
        """The first and last sequence that two events share, among the ``limit`` highest; None if none do."""

    async def republish(self, stream: str, state: AuditedStream, lost: Sequence[LedgerEntry]) -> Losses:
        """Mark events unpublished, unless their entry has changed meanwhile; return the marked events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """The result of comparing one stream. ``repaired``: lost events are marked unpublished, to be published."""

    context: str
    stream: str
    exists: bool = True
    checked: int = 0
    tail: Losses = Losses()
    middle: Losses = Losses()
    repaired: bool = False

    @property
    def lost(self) -> int:
        """How many events the stream has lost."""
        return self.tail.count + self.middle.count


class ReconcileStream:
    """The publisher's side: compares the ledger with the streams. It may be repeated and run in parallel."""

    def __init__(
        self,
        context: str,
        ledger: PublishLedger,
        auditor: StreamAuditor,
        facts: FactSink,
        limits: AuditLimits = AuditLimits(),
    ) -> None:
        self._context = context
        self._ledger = ledger
        self._auditor = auditor
        self._facts = facts
        self._limits = limits
        self._created: dict[str, datetime | None] = {}

    async def tick(self, page: int) -> Sequence[StreamReport]:
        """The scheduled check, with repair: the tail, suspect ranges, the latest page, and one more by number."""
        return [await self._stream(stream, repair=True, page=page) for stream in await self._ledger.streams()]

    async def everything(self, *, repair: bool, progress: Progress = nobody) -> Sequence[StreamReport]:
        """Compare everything that the streams should hold. Raises BrokerUnreachable and DatabaseUnreachable."""
        streams = await self._ledger.streams()
        return [await self._stream(stream, repair=repair, progress=progress) for stream in streams]

    async def _stream(
        self, stream: str, *, repair: bool, page: int | None = None, progress: Progress = nobody
    ) -> StreamReport:
        # Read the ledger first. The stream, read afterwards, must hold all that the ledger held before.
        highest, before = await self._ledger.highest(stream)
        state = await self._auditor.state(stream)
        report = StreamReport(context=self._context, stream=stream, repaired=repair)
        if state is None:
            return replace(report, exists=False, repaired=False)
        if highest > state.last_seq:
            state = await self._confirmed(stream, state)
            report = replace(report, tail=await self._ledger.beyond(stream, state, before, republish=repair))
        for first, last in await self._ranges(stream, state, page):
            progress(0, last - first + 1)
            checked, lost = await self._audit(stream, state, first, last, before, repair=repair, progress=progress)
            report = replace(report, checked=report.checked + checked, middle=report.middle + lost)
        self._report(report)
        return report

    async def _confirmed(self, stream: str, state: AuditedStream) -> AuditedStream:
        await asyncio.sleep(self._limits.confirm.total_seconds())
        again = await self._auditor.state(stream)
        return state if again is None else replace(again, last_seq=max(again.last_seq, state.last_seq))

    async def _ranges(self, stream: str, state: AuditedStream, page: int | None) -> Sequence[tuple[int, int]]:
        """The ranges to read: everything, or the pages of one check and the suspect range."""
        first, last = state.first_seq, state.last_seq
        known = self._created.setdefault(stream, state.created)
        self._created[stream] = state.created
        if page is None or known != state.created:
            return [(first, last)]
        ranges = windows(first, last, page, self._limits.page)
        reused = await self._ledger.reused(stream, state, self._limits.recent)
        return ranges if reused is None else [(max(reused[0], first), min(reused[1], last)), *ranges]

    async def _audit(
        self,
        stream: str,
        state: AuditedStream,
        first: int,
        last: int,
        before: datetime,
        *,
        repair: bool,
        progress: Progress,
    ) -> tuple[int, Losses]:
        checked, lost, pause, begin, page = 0, Losses(), self._limits.confirm, first, self._limits.page
        while entries := _whole(await self._ledger.page(stream, state, first, last, before, page), page):
            missing = await self._missing(stream, entries)
            if missing:
                # Pause only once. A second for each page would be too slow for a stream that has lost much.
                await asyncio.sleep(pause.total_seconds())
                missing, pause = await self._missing(stream, missing), timedelta()
            if missing and repair:
                lost += await self._ledger.republish(stream, state, missing)
            else:
                lost += Losses(len(missing), tuple(entry.text or entry.id for entry in missing[:_MAX_IDS]))
            checked += len(entries)
            first = entries[-1].seq + 1
            progress(first - begin, last - begin + 1)
        return checked, lost

    async def _missing(self, stream: str, entries: Sequence[LedgerEntry]) -> Sequence[LedgerEntry]:
        stored = await self._auditor.stored(stream, entries[0].seq, entries[-1].seq)
        held = {message.seq: message.event_id for message in stored}
        missing = [entry for entry in entries if held.get(entry.seq) != entry.id]
        if not missing:
            return []
        # A message that expired while we read is not lost.
        state = await self._auditor.state(stream)
        return [entry for entry in missing if state is not None and entry.seq >= state.first_seq]

    def _report(self, report: StreamReport) -> None:
        if report.lost:
            self._facts(
                StreamLossFound(
                    context=self._context,
                    stream=report.stream,
                    tail=report.tail.count,
                    middle=report.middle.count,
                    ids=[*report.tail.ids, *report.middle.ids][:_MAX_IDS],
                    repaired=report.repaired,
                )
            )


def _whole(entries: Sequence[LedgerEntry], page: int) -> Sequence[LedgerEntry]:
    """A full page without its last sequence, because the next page may have another event with it."""
    if len(entries) < page:
        return entries
    return [entry for entry in entries if entry.seq < entries[-1].seq] or entries


def windows(first: int, last: int, number: int, page: int) -> Sequence[tuple[int, int]]:
    """The latest page and one other: ``number`` modulo the count of pages, so that each has its turn."""
    if last < first:
        return []
    latest = max(first, last - page + 1)
    count = -(-(latest - first) // page)
    if not count:
        return [(latest, last)]
    begin = first + number % count * page
    return [(begin, min(begin + page, latest) - 1), (latest, last)]


def pages(first: int, last: int, page: int) -> Iterator[tuple[int, int]]:
    """The range in pages, both ends included."""
    for begin in range(first, last + 1, page):
        yield begin, min(begin + page - 1, last)


#: Older messages are not checked: the inbox need not keep its rows for longer.
HORIZON: Final = timedelta(hours=24)


class ReceivedMessages(Protocol):
    """Looks messages up in the inbox, by id and by place. Both methods raise DatabaseUnreachable."""

    async def known(self, ids: Collection[UUID], others: Collection[str] = ()) -> set[UUID]:
        """Return those of ``ids`` that the inbox holds, besides the rows of other subscriptions."""

    async def held(self, subscription: str, stream: str, seqs: Collection[int]) -> Mapping[int, str | None]:
        """Return ``Nats-Msg-Id`` of each message that the inbox holds from these places of the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxReport:
    """The result of comparing a subscription: the sequences of messages that its inbox does not hold.

    ``since``: when the stream stored the first of them. ``coming``: how many messages JetStream still delivers.
    """

    context: str
    subscription: str
    stream: str
    checked: int
    missing: Sequence[int]
    since: datetime | None = None
    coming: int = 0


@dataclass(frozen=True, slots=True)
class FindMissing:
    """The consumer's side: messages that are acknowledged in JetStream but missing from the inbox.

    A PostgreSQL failover may lose inbox rows that were already acknowledged. So every message up to the
    acknowledgement floor is looked up by its id. JetStream still delivers the messages above it. ``others``: the
    other subscriptions of the context. ``horizon``: how old the messages may be; None for any age.
    """

    context: str
    subscription: str
    _: KW_ONLY
    stream: str
    filter_subject: str
    consumer: JetStreamConsumer
    auditor: StreamAuditor
    inbox: ReceivedMessages
    others: Collection[str] = ()
    horizon: timedelta | None = HORIZON
    limits: AuditLimits = AuditLimits()

    async def run(self, page: int | None = None, progress: Progress = nobody) -> InboxReport:
        """Compare the page of this number and the latest one, or everything if ``page`` is None.

        Raises BrokerUnreachable and DatabaseUnreachable.
        """
        ours = await self.consumer.state()
        state, ack_floor = await self.auditor.state(self.stream), ours.ack_floor
        checked, missing, since = 0, set[int](), None
        first = max(state.first_seq if state else 1, ours.first)
        size = self.limits.page
        ranges = pages(first, ack_floor, size) if page is None else windows(first, ack_floor, page, size)
        for begin, end in ranges:
            stored = await self._recent(begin, end, ours.since)
            checked += len(stored)
            if absent := await self._absent(stored):
                missing |= absent
                since = min([*([since] if since else []), *(it.at for it in stored if it.seq in absent)])
            progress(end - first + 1, ack_floor - first + 1)
        return InboxReport(
            context=self.context,
            subscription=self.subscription,
            stream=self.stream,
            checked=checked,
            missing=sorted(missing),
            since=since,
            coming=ours.pending + ours.undelivered,
        )

    async def _recent(self, first: int, last: int, since: datetime | None) -> Sequence[Stored]:
        """The messages that the inbox should have: not too old, and not from before the subscription's start."""
        stored = await self.auditor.stored(self.stream, first, last, self.filter_subject)
        oldest = None if self.horizon is None else datetime.now(UTC) - self.horizon
        begins = max((it for it in (oldest, since) if it is not None), default=None)
        return [message for message in stored if begins is None or message.at >= begins]

    async def _absent(self, stored: Sequence[Stored]) -> set[int]:
        """The messages that the inbox knows neither by their own id nor by the id of their place.

        An envelope may give a message another id than ``Nats-Msg-Id``. Such a message is found by its place.
        """
        ids = {message.seq: {stand_in_id(self.stream, message.seq), message.message_id} for message in stored}
        known = await self.inbox.known({id for pair in ids.values() for id in pair if id is not None}, self.others)
        absent = {it.seq: it.msg_id for it in stored if known.isdisjoint(ids[it.seq])}
        held = await self.inbox.held(self.subscription, self.stream, absent.keys()) if absent else {}
        return {seq for seq, msg_id in absent.items() if seq not in held or held[seq] != msg_id}
