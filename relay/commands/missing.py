"""FindMissing: finds messages that are acknowledged in JetStream but missing from the inbox (DESIGN §9)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol
from uuid import UUID

from relay.commands.reconcile import AuditLimits, Progress, Stored, StreamAuditor, nobody, pages, windows
from relay.domain.identity import stand_in_id
from relay.ports import JetStreamConsumer

#: Older messages are not checked: the inbox need not keep its rows for longer.
HORIZON: Final = timedelta(hours=24)

_LIMITS: Final = AuditLimits()


class ReceivedMessages(Protocol):
    """Looks messages up in the inbox, by id and by place. Both methods raise DatabaseUnreachable."""

    async def known(self, ids: Collection[UUID]) -> set[UUID]:
        """Return those of ``ids`` that the inbox holds."""

    async def held(self, subscription: str, stream: str, seqs: Collection[int]) -> Mapping[int, str | None]:
        """Return ``Nats-Msg-Id`` of each message that the inbox holds from these places of the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxReport:
    """The result of comparing a subscription: the sequences of messages that its inbox does not hold."""

    context: str
    subscription: str
    stream: str
    checked: int
    missing: Sequence[int]


@dataclass(frozen=True, slots=True)
class FindMissing:
    """The consumer's side: messages that are acknowledged in JetStream but missing from the inbox.

    A PostgreSQL failover may lose inbox rows that were already acknowledged. So every message up to the
    acknowledgement floor is looked up by its id. JetStream still delivers the messages above it.
    """

    context: str
    subscription: str
    _: KW_ONLY
    stream: str
    filter_subject: str
    consumer: JetStreamConsumer
    auditor: StreamAuditor
    inbox: ReceivedMessages
    horizon: timedelta = HORIZON
    limits: AuditLimits = _LIMITS

    async def run(self, page: int | None = None, progress: Progress = nobody) -> InboxReport:
        """Compare the page of this number and the latest one, or everything if ``page`` is None.

        Raises BrokerUnreachable and DatabaseUnreachable.
        """
        ours = await self.consumer.state()
        state, ack_floor = await self.auditor.state(self.stream), ours.ack_floor
        checked, missing = 0, set[int]()
        first = max(state.first_seq if state else 1, ours.first)
        size = self.limits.page
        ranges = pages(first, ack_floor, size) if page is None else windows(first, ack_floor, page, size)
        for begin, end in ranges:
            stored = await self._recent(begin, end, ours.since)
            checked += len(stored)
            missing |= await self._absent(stored)
            progress(end - first + 1, ack_floor - first + 1)
        return InboxReport(
            context=self.context,
            subscription=self.subscription,
            stream=self.stream,
            checked=checked,
            missing=sorted(missing),
        )

    async def _recent(self, first: int, last: int, since: datetime | None) -> Sequence[Stored]:
        """The messages that the inbox should have: not too old, and not from before the subscription's start."""
        stored = await self.auditor.stored(self.stream, first, last, self.filter_subject)
        oldest = datetime.now(UTC) - self.horizon
        return [message for message in stored if message.at > oldest and (since is None or message.at >= since)]

    async def _absent(self, stored: Sequence[Stored]) -> set[int]:
        """The messages that the inbox knows neither by their own id nor by the id of their place.

        An envelope may give a message another id than ``Nats-Msg-Id``. Such a message is found by its place.
        """
        ids = {message.seq: {stand_in_id(self.stream, message.seq), message.message_id} for message in stored}
        known = await self.inbox.known({id for pair in ids.values() for id in pair if id is not None})
        absent = {it.seq: it.msg_id for it in stored if known.isdisjoint(ids[it.seq])}
        held = await self.inbox.held(self.subscription, self.stream, absent.keys()) if absent else {}
        return {seq for seq, msg_id in absent.items() if seq not in held or held[seq] != msg_id}
