"""Runs corrections: each once in effect, in the transaction that notes it in its incident."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid5

from consumer.corrections import TIME_LIMIT, Correction, DeadMessage
from relay.adapters.postgres.incidents import PostgresIncidents
from relay.adapters.postgres.transactions import HandlerTransactions, Settlement
from relay.bus import RequestContext
from relay.domain.model import Verdict
from relay.domain.traceparent import find
from relay.execution.calls import Calls, PreparedCall, answered

#: How many dead letters of a subscription are corrected in one run, and how many at a time.
_BATCH: Final = 100
_MAX_CALLS: Final = 8
_DONE: Final = (Verdict.PROCESSED, Verdict.ALREADY_PROCESSED)


@dataclass(slots=True)
class CorrectDeadLetters:
    """Runs the corrections of one subscription. ``limit``: how long each may take."""

    subscription: str
    corrections: Sequence[Correction]
    incidents: PostgresIncidents
    transactions: HandlerTransactions
    limit: timedelta = TIME_LIMIT
    _calls: Calls = field(init=False, default_factory=lambda: Calls(_MAX_CALLS))

    async def run(self) -> int:
        """Correct the dead letters that wait; returns how many. Raises DatabaseUnreachable."""
        await self.incidents.declare(self.subscription)
        waiting = [DeadMessage(**row) for row in await self.incidents.uncorrected(self.subscription, _BATCH)]
        await asyncio.gather(*map(self._correct, waiting))
        return len(waiting)

    async def _correct(self, letter: DeadMessage) -> None:
        correction = next((it for it in self.corrections if it.event_type in (None, letter.event_type)), None)
        if correction is None:
            await self.incidents.corrected(letter.incident_id, "none")
            return
        result = await answered(self._calls.run(self._call(letter, correction)), self.limit.total_seconds())
        if result.settled:
            return
        if result.verdict in _DONE:
            await self.incidents.corrected(letter.incident_id, f"done by {correction.where}")
        else:
            await self.incidents.uncorrectable(letter.incident_id, result.detail or "it failed")

    def _call(self, letter: DeadMessage, correction: Correction) -> PreparedCall:
        about = {"id": letter.incident_id, "correction": f"done by {correction.where}"}
        context = RequestContext(
            correlation_id=letter.correlation_id or letter.message_id,
            causation_id=letter.message_id,
            traceparent=find(letter.headers),
        )
        id = letter.message_id if isinstance(letter.message_id, UUID) else uuid5(UUID(int=0), letter.message_id)
        settlement = Settlement("incidents/correct_once+correct", about, self.limit)
        return PreparedCall(id, correction.function, letter, {}, context, settlement, self.transactions)
