"""The DLQ subscriber (building block 2.4): it records dead letters as incidents and sends alerts.

It does not requeue. That is an operator's decision (`relay dlq`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Final

from relay.adapters.postgres.incidents import PostgresIncidents
from relay.adapters.webhook import Webhook
from relay.domain.disclosure import stack_of
from relay.domain.errors import AlertRefused
from relay.domain.facts import AlertFailed, FactSink, IncidentRecorded
from relay.domain.incidents import RecordedIncident, read_letter
from relay.failpoints import reach
from relay.ports import Delivery, IncidentRecords, JetStreamConsumer

_WAIT: Final = timedelta(milliseconds=200)
_BATCH_LETTERS: Final = 100
#: How many incidents an alert names; it counts the rest.
_MAX_NAMED_INCIDENTS: Final = 20


@dataclass(frozen=True, slots=True)
class RecordDeadLetters:
    """Records dead letters. Repeatable: the id and the occurrence of its message identify a letter."""

    context: str
    consumer: JetStreamConsumer
    incidents: IncidentRecords
    facts: FactSink

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
        """Record a batch, state the fact of each new incident, acknowledge."""
        letters = [read_letter(it.subject, it.body, it.stream, it.stream_seq) for it in deliveries]
        recorded = await self.incidents.record(letters)
        reach("after_incident_commit")
        for incident in recorded:
            about = asdict(incident)
            self.facts(IncidentRecorded(context=self.context, incident_id=about.pop("id"), **about))
        await self.consumer.ack([it.reply for it in deliveries])
        return len(recorded)


@dataclass(frozen=True, slots=True)
class SendAlerts:
    """Sends alerts about open incidents to a webhook, at most ``per_minute`` in the whole fleet.

    The table keeps incidents until they are alerted, so neither a crash nor the limit loses an alert. Incidents
    that come faster share one alert. A crash after the webhook's answer repeats an alert.
    """

    context: str
    incidents: PostgresIncidents
    webhook: Webhook
    per_minute: int
    facts: FactSink

    async def run(self) -> int:
        """Send one alert if one is due; returns how many incidents it covers. Raises DatabaseUnreachable."""
        async with self.incidents.unalerted(timedelta(minutes=1) / self.per_minute) as alerts:
            if not alerts.incidents:
                return 0
            try:
                await self.webhook.send(_alert(self.context, alerts.incidents))
            except AlertRefused as error:
                self.facts(AlertFailed(context=self.context, error=error.message))
                return 0
            await alerts.mark()
            return len(alerts.incidents)


def _alert(context: str, incidents: Sequence[RecordedIncident]) -> bytes:
    """Return the alert's JSON. Chat services show ``text``; payloads are never part of it."""
    first = incidents[0]
    more = f" and {len(incidents) - 1} more" if len(incidents) > 1 else ""
    what = f"{first.event_type or 'unreadable message'} in {first.subscription or 'an unknown subscription'}"
    body = {
        "type": "relay.dead_letters",
        "context": context,
        "count": len(incidents),
        "text": f"{context}: dead letter {first.id}, {what}: {stack_of(first.reason)[0][:200]}{more}",
        "incidents": [asdict(incident) for incident in incidents[:_MAX_NAMED_INCIDENTS]],
    }
    return json.dumps(body, default=str).encode()
