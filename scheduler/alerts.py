"""Alerts, sent by the scheduler that leads a context: it still can when every worker is gone.

`AlertTick` sends what waits. `ConditionTick` looks at the servers as `relay health` does, and at the rules of
alarms: each error and each alarm that it finds is a condition, which alerts when it begins, while it lasts, and
when it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from relay.adapters.postgres.alerts import PostgresAlerts
from relay.adapters.postgres.pool import Source
from relay.bootstrap import Application, alert_sender
from relay.commands.alerts import SendAlerts
from relay.domain.alarms import Alarm, AlarmsNow
from relay.domain.alerts import AlertClass, Condition
from relay.domain.errors import Outage
from relay.domain.facts import FactSink, OutageSeen
from relay.domain.findings import Diagnosis, Finding, Severity
from relay.settings import ContextSettings, Settings

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

#: The place of alarms: only a look at the rules can show that one has ended.
_RULES: Final = "rules of alarms"

_log = logging.getLogger("relay.scheduler")


class ConditionTick:
    """Looks at the servers of one context. A look may take longer than a tick, so it runs beside it."""

    def __init__(
        self,
        context: str,
        settings: Settings,
        alerts: PostgresAlerts,
        facts: FactSink,
        alarms: Callable[[], Awaitable[AlarmsNow]] | None = None,
    ) -> None:
        self._context, self._alerts, self._facts, self._alarms = context, alerts, facts, alarms
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
            if self._alarms is not None:
                await self.observe_alarms(await self._alarms())
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

    async def observe_alarms(self, found: AlarmsNow) -> None:
        """Compare the alarms that fire with those that are known. Raises DatabaseUnreachable."""
        if self._context in found.unread:
            return
        await self._alerts.observe([_alarm(it) for it in found.firing], [_RULES], self._repeat)


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


def _alarm(alarm: Alarm) -> Condition:
    of = "subscription" if "subscription" in alarm.labels else "context"
    return Condition(
        code=alarm.rule.name,
        place=_RULES,
        subject_type=of,
        subject=alarm.subject,
        reason="; ".join(filter(None, (alarm.text, alarm.action))),
        kind=AlertClass.ALARM,
        value=alarm.value,
    )


def _watch(application: Application, context: str) -> Callable[[], Awaitable[AlarmsNow]]:
    """The rules, looked at through the pool of the context."""
    from relay.ops.alarms.watch import Watch, WatchLimits  # noqa: PLC0415 - loads the clients of all servers

    @asynccontextmanager
    async def lend(_: ContextSettings) -> AsyncIterator[Source]:
        yield application.context(context).pool.connection

    contexts = {context: application.settings.contexts[context]}
    settings = application.settings.model_copy(update={"contexts": contexts})
    return Watch(settings, lend, shared=False, limits=WatchLimits(fresh_s=0)).look


def sender_and_conditions(application: Application, context: str) -> tuple[SendAlerts, ConditionTick]:
    """What a context's alerts need. Raises ConfigurationError for a certificate that cannot be used."""
    parts = application.context(context)
    records = PostgresAlerts(parts.pool.connection, parts.wakeup.alerts_waiting)
    watch = _watch(application, context)
    conditions = ConditionTick(context, application.settings, records, application.facts, watch)
    application.on_stop.append(conditions.stop)
    return alert_sender(parts.settings, records, application.facts), conditions
