"""The DLQ subscriber (building block 2.4): it records dead letters as incidents whose alerts the scheduler sends.

It does not requeue. That is an operator's decision (`relay dlq`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from relay.commands.incidents import RecordIncidents
from relay.domain.letters import read_letter
from relay.failpoints import reach
from relay.ports import Delivery, JetStreamConsumer

_WAIT: Final = timedelta(milliseconds=200)
_BATCH_LETTERS: Final = 100


@dataclass(frozen=True, slots=True)
class RecordDeadLetters:
    """Records the deaths that letters announce. Repeatable."""

    consumer: JetStreamConsumer
    incidents: RecordIncidents

    async def run(self) -> int:
        """Record the letters that wait in the DLQ stream; returns how many incidents were new.

        A letter is acknowledged after it is recorded. Raises BrokerUnreachable and DatabaseUnreachable.
        """
        new = 0
        while deliveries := await self.consumer.fetch(_BATCH_LETTERS, _WAIT):
            new += await self.accept(deliveries)
        if rest := await self.consumer.finish():
            new += await self.accept(rest)
        return new

    async def accept(self, deliveries: Sequence[Delivery]) -> int:
        """Record a batch, then acknowledge it."""
        letters = [read_letter(it.subject, it.body, it.stream, it.stream_seq, it.stored_at) for it in deliveries]
        new = await self.incidents.of_letters(letters)
        reach("after_incident_commit")
        await self.consumer.ack([it.reply for it in deliveries])
        return new
