"""The consumer's side of reconciliation: fetch what the inbox should hold and does not (DESIGN §9)."""

from __future__ import annotations

from consumer.pull import PullMessages
from consumer.rescue import MessageReader
from relay.commands.missing import FindMissing
from relay.domain.facts import FactSink, InboxGapFilled


class ReconcileInbox:
    """Fills gaps of the inbox. Safe to repeat and beside a live pull job: the inbox takes a message once."""

    def __init__(
        self,
        context: str,
        subscription: str,
        find: FindMissing,
        reader: MessageReader,
        pull: PullMessages,
        facts: FactSink,
    ) -> None:
        self._context, self._subscription = context, subscription
        self._find, self._reader, self._pull, self._facts = find, reader, pull, facts

    async def run(self, turn: int | None = None) -> int:
        """Compare one turn's share, or everything; returns how many messages were inserted.

        Raises BrokerUnreachable and DatabaseUnreachable.
        """
        count = 0
        for seq in (await self._find.run(turn)).missing:
            delivery = await self._reader.next(seq)
            if delivery is not None and delivery.stream_seq == seq:
                count += await self._pull.accept([delivery])
        if count:
            self._facts(InboxGapFilled(context=self._context, subscription=self._subscription, count=count))
        return count
