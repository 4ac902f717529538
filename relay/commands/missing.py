"""FindMissing: messages that JetStream is done with and the inbox does not hold (DESIGN §9)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol
from uuid import UUID

from relay.commands.reconcile import PAGE, Stored, StreamAuditor, windows
from relay.domain.model import stand_in_id
from relay.ports import JetStreamConsumer

#: Older messages are not asked after: the inbox need not keep its rows for longer.
HORIZON: Final = timedelta(hours=24)


class ReceivedMessages(Protocol):
    """The inbox by id. Raises DatabaseUnreachable."""

    async def known(self, ids: Collection[UUID]) -> set[UUID]:
        """Those of ``ids`` that the inbox holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxReport:
    """What came of comparing a subscription: the sequences of messages that its inbox does not hold."""

    context: str
    subscription: str
    stream: str
    checked: int
    missing: Sequence[int]


class FindMissing:
    """The consumer's side: messages that JetStream is done with and the inbox does not hold.

    A PostgreSQL failover may take inbox rows with it whose acknowledgement had left. Everything up to the
    acknowledgement floor is looked for by its id; what is above is still JetStream's to deliver.
    """

    def __init__(
        self,
        context: str,
        subscription: str,
        *,
        stream: str,
        filter_subject: str,
        consumer: JetStreamConsumer,
        auditor: StreamAuditor,
        inbox: ReceivedMessages,
        horizon: timedelta = HORIZON,
    ) -> None:
        self._names = (context, subscription)
        self._stream, self._filter = stream, filter_subject
        self._consumer, self._auditor, self._inbox = consumer, auditor, inbox
        self._horizon = horizon

    async def run(self, turn: int | None = None) -> InboxReport:
        """Compare page ``turn`` and the latest, or everything. Raises BrokerUnreachable, DatabaseUnreachable."""
        floor = (await self._consumer.state()).floor
        state = await self._auditor.state(self._stream)
        checked, missing = 0, set[int]()
        first = state.first_seq if state else 1
        for begin, end in _pages(first, floor) if turn is None else windows(first, floor, turn):
            stored = await self._recent(begin, end)
            checked += len(stored)
            missing |= await self._absent(stored)
        context, subscription = self._names
        return InboxReport(
            context=context,
            subscription=subscription,
            stream=self._stream,
            checked=checked,
            missing=sorted(missing),
        )

    async def _recent(self, first: int, last: int) -> Sequence[Stored]:
        stored = await self._auditor.stored(self._stream, first, last, self._filter)
        oldest = datetime.now(UTC) - self._horizon
        return [message for message in stored if message.at > oldest]

    async def _absent(self, stored: Sequence[Stored]) -> set[int]:
        """Those under neither id that the inbox may know a message by: its own, or that of its place."""
        ids = {message.seq: {stand_in_id(self._stream, message.seq), message.event_id} for message in stored}
        known = await self._inbox.known({id for pair in ids.values() for id in pair if id is not None})
        return {seq for seq, pair in ids.items() if known.isdisjoint(pair)}


def _pages(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The range cut into pages, both ends included."""
    for begin in range(first, last + 1, PAGE):
        yield begin, min(begin + PAGE - 1, last)
