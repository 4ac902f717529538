"""The DLQ subscriber (building block 2.4): dead letters become incidents, and somebody is told.

It records and reports. Nothing is requeued here: that is an operator's decision (`relay dlq`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from datetime import timedelta
from typing import Final, Protocol

from relay.domain.errors import AlertRefused
from relay.domain.facts import AlertFailed, FactSink, IncidentRecorded
from relay.domain.incidents import Letter, RecordedIncident, read_letter
from relay.failpoints import reach
from relay.ports import Delivery, JetStreamConsumer

_WAIT: Final = timedelta(milliseconds=200)
_BATCH: Final = 100
#: An alert names so many incidents and counts the rest.
_NAMED: Final = 20


class IncidentRecords(Protocol):
    """Where incidents are kept."""

    async def record(self, letters: Sequence[Letter]) -> Sequence[RecordedIncident]:
        """Record dead letters, each once; returns those that were new. Raises DatabaseUnreachable."""


class RecordDeadLetters:
    """Repeatable: a letter is known by its message's id and occurrence, however often it is read."""

    def __init__(
        self, context: str, consumer: JetStreamConsumer, incidents: IncidentRecords, facts: FactSink
    ) -> None:
        self._context = context
        self._consumer = consumer
        self._incidents = incidents
        self._facts = facts

    async def run(self) -> int:
        """Record what waits in the DLQ stream; returns how many incidents were new.

        Raises BrokerUnreachable and DatabaseUnreachable; a letter is acknowledged once it is recorded.
        """
        new = 0
        while deliveries := await self._consumer.fetch(_BATCH, _WAIT):
            new += await self.accept(deliveries)
        if rest := await self._consumer.finish():
            new += await self.accept(rest)
        return new

    async def accept(self, deliveries: Sequence[Delivery]) -> int:
        """Record a batch, state the fact of each new incident, acknowledge."""
        letters = [read_letter(found.subject, found.body, found.stream, found.stream_seq) for found in deliveries]
        recorded = await self._incidents.record(letters)
        reach("after_incident_commit")
        for incident in recorded:
            self._facts(
                IncidentRecorded(
                    context=self._context,
                    incident_id=incident.id,
                    subscription=incident.subscription,
                    message_id=incident.message_id,
                    event_type=incident.event_type,
                    correlation_id=incident.correlation_id,
                    causation_id=incident.causation_id,
                    kind=incident.kind,
                    reason=incident.reason,
                    attempts=incident.attempts,
                )
            )
        await self._consumer.ack([found.reply for found in deliveries])
        return len(recorded)


class Alerts(Protocol):
    """Incidents locked while an alert is on its way. Leaving the block commits, an exception rolls back."""

    incidents: Sequence[RecordedIncident]

    async def mark(self) -> None:
        """Note that somebody was told of all of them."""


class AlertSource(Protocol):
    """Where incidents wait that nobody was told of."""

    def unalerted(self, spacing: timedelta) -> AbstractAsyncContextManager[Alerts]:
        """Lock them; none, while the last alert is younger than ``spacing``. Raises DatabaseUnreachable."""


class AlertChannel(Protocol):
    """Where alerts go."""

    async def send(self, body: bytes) -> None:
        """Deliver one alert. Raises AlertRefused when it was not taken, for whatever reason."""


class SendAlerts:
    """Tells a channel of open incidents, ``per_minute`` times at most, over the whole fleet.

    What is not told yet is kept in the table, so neither a crash nor the limit loses an alert: incidents that
    come faster are told together. A crash behind the channel's answer repeats an alert.
    """

    def __init__(
        self, context: str, source: AlertSource, channel: AlertChannel, per_minute: int, facts: FactSink
    ) -> None:
        self._context = context
        self._source = source
        self._channel = channel
        self._spacing = timedelta(minutes=1) / per_minute
        self._facts = facts

    async def run(self) -> int:
        """Send one alert if one is due; returns of how many incidents it told. Raises DatabaseUnreachable."""
        async with self._source.unalerted(self._spacing) as alerts:
            if not alerts.incidents:
                return 0
            try:
                await self._channel.send(_alert(self._context, alerts.incidents))
            except AlertRefused as error:
                self._facts(AlertFailed(context=self._context, error=error.message))
                return 0
            await alerts.mark()
            return len(alerts.incidents)


def _alert(context: str, incidents: Sequence[RecordedIncident]) -> bytes:
    """The alert's JSON. ``text`` is what chat services show; payloads are never part of it."""
    first = incidents[0]
    more = f" and {len(incidents) - 1} more" if len(incidents) > 1 else ""
    what = f"{first.event_type or 'unreadable message'} in {first.subscription or 'an unknown subscription'}"
    body = {
        "type": "relay.dead_letters",
        "context": context,
        "count": len(incidents),
        "text": f"{context}: dead letter {first.id}, {what}: {first.reason[:200]}{more}",
        "incidents": [asdict(incident) for incident in incidents[:_NAMED]],
    }
    return json.dumps(body, default=str).encode()
