"""Alerts, sent by the scheduler that leads a context: it still can when every worker is gone.

`AlertTick` sends what waits. `ConditionTick` looks at the servers as `relay health` does: each error that it finds
is a condition, which alerts when it begins, while it lasts, and when it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Final

from relay.adapters.postgres.alerts import PostgresAlerts
from relay.bootstrap import Application, alert_sender
from relay.commands.alerts import SendAlerts
from relay.domain.alerts import Condition
from relay.domain.errors import Outage
from relay.domain.facts import FactSink, OutageSeen
from relay.domain.findings import Diagnosis, Finding, Severity
from relay.settings import Settings

#: How often to look for alerts to send.
EVERY: Final = timedelta(seconds=3)
#: Errors of a moment: a restart, or what waits when a fleet starts. They alert if the next look finds them too.
_BRIEF: Final = ("_UNREACHABLE", "_STALLED", "CHECK_FAILED", "CONNECTIONS_BUSY")

#: Warnings that alert too: a circuit that opens.
_AT_ONCE: Final = frozenset({"HANDLER_AWAY"})

#: What a finding is about: a server, "stream S", or "events of sea".
_SUBJECT: Final = re.compile(r"(?P<type>\S+) (?:of |at )?(?P<name>.+)", re.DOTALL)

#: Lanes stand still and go on together, mostly. They are one condition of their outbox.
_LANE: Final = re.compile(r"\.(lane \d+|without a key)$")

_log = logging.getLogger("relay.scheduler")


class ConditionTick:
    """Looks at the servers of one context. A look may take longer than a tick, so it runs beside it."""

    def __init__(self, context: str, settings: Settings, alerts: PostgresAlerts, facts: FactSink) -> None:
        self._context, self._alerts, self._facts = context, alerts, facts
        self._settings = settings
        self._repeat = settings.contexts[context].alerts.repeat
        self._looking: asyncio.Task[None] | None = None
        self._seen: Collection[Finding] = ()

    async def tick(self) -> None:
        """Begin to look, unless the last look is still under way."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self.look())

    async def stop(self) -> None:
        """End the look that is under way."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def look(self) -> None:
        """Look once at what the context works with, and at nothing of other contexts. Never raises."""
        from relay.ops.doctor.examining import Examination  # noqa: PLC0415 - loads the clients of all servers

        try:
            diagnosis = await Examination(self._settings, close=False, process=None, only=self._context).run()
            await self.observe(diagnosis)
        except Outage as error:
            self._facts(OutageSeen(context=self._context, server=error.server, error=error.explanation))
        except Exception:
            _log.exception("the conditions of %s could not be looked at", self._context)

    async def observe(self, diagnosis: Diagnosis) -> None:
        """Compare what was found with the conditions that are known. Raises DatabaseUnreachable."""
        errors = [
            (it.server, finding)
            for it in diagnosis.examined
            for finding in it.findings
            if finding.severity is Severity.ERROR or finding.code in _AT_ONCE
        ]
        before, self._seen = {(it.code, it.subject) for it in self._seen}, [finding for _, finding in errors]
        lasting = [
            _condition(place, it)
            for place, it in errors
            if (it.code, it.subject) in before or not it.code.endswith(_BRIEF)
        ]
        await self._alerts.observe(lasting, list(_answered(diagnosis)), self._repeat)


def _answered(diagnosis: Diagnosis) -> Iterable[str]:
    """The places whose findings are complete."""
    return (it.server for it in diagnosis.examined if it.detail)


def _condition(place: str, finding: Finding) -> Condition:
    named = _SUBJECT.fullmatch(finding.subject)
    subject = (named["type"], _LANE.sub("", named["name"])) if named else ("server", finding.subject)
    text = "; ".join(filter(None, (finding.text, finding.remedy)))
    return Condition(
        code=finding.code.lower(), place=place, subject_type=subject[0], subject=subject[1], reason=text
    )


def sender_and_conditions(application: Application, context: str) -> tuple[SendAlerts, ConditionTick]:
    """What a context's alerts need. Raises ConfigurationError for a certificate that cannot be used."""
    parts = application.context(context)
    records = PostgresAlerts(parts.pool.connection, parts.wakeup.alerts_waiting)
    conditions = ConditionTick(context, application.settings, records, application.facts)
    application.on_stop.append(conditions.stop)
    return alert_sender(parts.settings, records, application.facts), conditions
