"""What rules judge, read from the tables of a context and from the servers that all contexts share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import nats.errors
import redis.exceptions

from relay.adapters.dramatiq.gates import Gates
from relay.adapters.postgres.alarms import KnownCondition, Lately, PostgresAlarms
from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.movements import PostgresMovements
from relay.adapters.postgres.pool import Source
from relay.credentials import jetstream, redis_options
from relay.domain.alarm_rules import RULES
from relay.domain.alarms import OTHER, AlarmKey, Grown, PausedPart, Reading, Share
from relay.domain.alerts import AlertClass
from relay.domain.backlogs import Backlogs
from relay.domain.errors import BrokerUnreachable, QueueUnreachable, RelayError
from relay.domain.standstill import BacklogKind, Failing, Movement, RefusedEvents, confirmed, standing
from relay.settings import ContextSettings, Settings

_SURGE: Final = RULES["JetrelayDeadLettersSurge"]
_FAILING: Final = RULES["JetrelayHandlerFailing"]
assert isinstance(_SURGE.measure, Grown)
assert isinstance(_FAILING.measure, Share)
_LATELY: Final = _SURGE.measure.within
_CALLS: Final = _FAILING.measure.within
#: The rule about what has happened lately, and the label of its subject.
_HAPPENED: Final = {
    "surge": ("JetrelayDeadLettersSurge", "subscription"),
    "failed_run": ("JetrelayCronRunFailed", "job"),
    "missed_run": ("JetrelayCronRunMissed", "job"),
    "failed_correction": ("JetrelayCorrectionFailed", ""),
    "condition": ("JetrelayCondition", ""),
    "unsent": ("JetrelayWebhookFailing", ""),
    "orphans": ("JetrelayProducerRestored", "stream"),
}
_Labels: TypeAlias = Mapping[str, str | None]
#: So many conditions are named beside the alarm about them.
_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRead:
    """What was read of a context.

    ``known``: since when alarms last, and their values at that look, as the scheduler has seen them. ``still``:
    what stood still in this look.
    """

    readings: Sequence[Reading]
    known: Mapping[AlarmKey, tuple[datetime, float | None]]
    paused: Sequence[PausedPart]
    still: Sequence[Movement]


class ContextReader:
    """Reads a context. It takes no locks, and reads a bounded number of rows.

    ``bound``: from how long on something that is due and does not move stands still.
    """

    def __init__(self, context: ContextSettings, bound: timedelta) -> None:
        self._context, self._name, self._bound = context, context.name, bound

    async def read(self, source: Source, before: Sequence[Movement] | None) -> ContextRead:
        """Read. ``before``: what stood still in the look before; None: look twice now.

        Raises DatabaseUnreachable and SchemaMissing.
        """
        bound, block = self._bound, self._context.publish.dead_head == "block"
        moving = PostgresMovements(source, bound=bound, dead_head_blocks=block)
        calls = PostgresMovements(source, bound=_CALLS, dead_head_blocks=block)
        more = PostgresAlarms(source)
        backlogs = await PostgresBacklogReader(source).backlogs()
        if before is None:
            still = lasting = await moving.standing()
        else:
            still = standing(await moving.look(), bound)
            lasting = confirmed(before, still)
        known = await more.known()
        readings = [
            *self._waiting(backlogs, *await more.dead_since()),
            *self._standing(lasting),
            *self._lately(await more.lately(_LATELY, int(_SURGE.over)), known),
            *self._refused(await moving.refused()),
            *self._failing(await calls.failing()),
            self._leads(await moving.lease()),
        ]
        return ContextRead(
            readings=readings, known=self._known(known), paused=[*await more.paused(self._name)], still=still
        )

    def _of(
        self, rule: str, value: float, since: float | None, more: _Labels | None = None, detail: str = ""
    ) -> Reading:
        labels = {"context": self._name, **{name: of or OTHER for name, of in (more or {}).items()}}
        if labels.get("subscription", OTHER) not in self._context.subscriptions and "subscription" in labels:
            labels["subscription"] = OTHER
        return Reading(rule=rule, labels=labels, value=float(value), since=since, detail=detail)

    def _age(self, rule: str, seconds: float, labels: _Labels | None = None) -> Reading:
        """A value that is an age: so it says for how long it has been too old."""
        return self._of(rule, seconds, seconds - RULES[rule].over, labels)

    def _waiting(self, found: Backlogs, dead: float | None, failed: float | None) -> Iterator[Reading]:
        yield self._age("JetrelayOutboxStalled", found.overdue)
        for inbox in found.inbox:
            yield self._age("JetrelayInboxStalled", inbox.oldest_age_seconds, {"subscription": inbox.subscription})
        yield self._age("JetrelayTasksStalled", found.tasks.oldest_age_seconds)
        for it in found.incidents:
            labels = {"subscription": it.subscription, "class": it.kind}
            yield self._of("JetrelayDeadLetters", it.count, it.oldest_age_seconds, labels)
        yield self._of("JetrelayEventsDead", found.outbox.dead, dead)
        yield self._of("JetrelayTasksFailed", found.tasks.failed, failed)
        for away in found.away:
            yield self._age("JetrelayHandlerAway", away.seconds, {"subscription": away.subscription})
        for it in found.parked:
            yield self._of(
                "JetrelayKeysParked", it.count, it.oldest_age_seconds, {"subscription": it.subscription}
            )
        since = found.brake.since
        braked = None if since is None else (datetime.now(UTC) - since).total_seconds()
        yield self._of("JetrelayProducersBraked", found.brake.braking, braked, None, found.brake.reason or "")

    def _standing(self, found: Sequence[Movement]) -> Iterator[Reading]:
        """Of each kind of backlog, the part that has stood still for longest, as in the metrics."""
        worst: dict[BacklogKind, Movement] = {}
        for it in found:
            if it.kind not in worst or it.still_seconds > worst[it.kind].still_seconds:
                worst[it.kind] = it
        for kind, it in worst.items():
            seconds = it.still_seconds
            yield self._of("JetrelayBacklogStandsStill", seconds, seconds, {"kind": kind.value}, it.part)

    def _lately(self, found: Sequence[Lately], known: Sequence[KnownCondition]) -> Iterator[Reading]:
        conditions = [f"{it.code.upper()} of {it.subject}" for it in known if it.kind == AlertClass.CONDITION]
        more = f" and {len(conditions) - _NAMED} more" if len(conditions) > _NAMED else ""
        for it in found:
            rule, label = _HAPPENED[it.what]
            if it.what == "unsent" and self._context.alerts.webhook is None:
                continue
            detail = ", ".join(conditions[:_NAMED]) + more if it.what == "condition" else ""
            yield self._of(rule, it.count, it.since, {label: it.subject} if label else None, detail)

    def _refused(self, found: RefusedEvents) -> Iterator[Reading]:
        yield self._of("JetrelayPublishFailing", found.count, found.seconds, None, found.reason)

    def _failing(self, found: Sequence[Failing]) -> Iterator[Reading]:
        for it in found:
            share = it.count / (it.count + it.handled)
            yield self._of(
                "JetrelayHandlerFailing", share, it.seconds, {"subscription": it.subscription}, it.reason
            )

    def _leads(self, lease: tuple[str, float] | None) -> Reading:
        over = None if lease is None else lease[1]
        return self._of("JetrelayNoLeader", float(over is not None and over < 0), over)

    def _known(self, found: Sequence[KnownCondition]) -> dict[AlarmKey, tuple[datetime, float | None]]:
        known: dict[AlarmKey, tuple[datetime, float | None]] = {}
        for it in found:
            if it.kind == AlertClass.ALARM and it.code in RULES:
                labels = zip(RULES[it.code].labels[1:], it.subject.split(", "), strict=False)
                known[it.code, (("context", self._name), *labels)] = it.since, it.value
        return known


async def servers(settings: Settings, patience: float) -> Sequence[str]:
    """Ask the servers that all contexts share; the names of those that do not answer in time."""
    found = await asyncio.gather(*(_answers(it, settings, patience) for it in _SERVERS.values()))
    return [name for name, answers in zip(_SERVERS, found, strict=True) if not answers]


async def _answers(question: Callable[[Settings], Awaitable[None]], settings: Settings, patience: float) -> bool:
    try:
        async with asyncio.timeout(patience):
            await question(settings)
    except (OSError, TimeoutError, nats.errors.Error, redis.exceptions.RedisError, RelayError):
        return False
    return True


async def _nats(settings: Settings) -> None:
    async with jetstream(settings) as js:
        await js.account_info()


async def _redis(settings: Settings) -> None:
    gates = Gates(settings.redis_url.get_secret_value(), settings.redis_namespace, **redis_options(settings))
    try:
        await gates.client.ping()
    finally:
        await gates.aclose()


#: The servers that all contexts share, as outages name them.
_SERVERS: Final = {BrokerUnreachable.server: _nats, QueueUnreachable.server: _redis}


def unreachable(server: str, context: str = "", detail: str = "") -> Reading:
    """The reading for a server that does not answer now; ``context`` "": all contexts share it."""
    return Reading(
        rule="JetrelayServerUnreachable", labels={"context": context, "server": server}, value=1, detail=detail
    )


def unread(context: str, since: timedelta) -> Reading:
    """The reading for a context of which nothing has been read for so long."""
    seconds = since.total_seconds()
    over = RULES["JetrelayBacklogUnknown"].over
    return Reading(
        rule="JetrelayBacklogUnknown", labels={"context": context}, value=seconds, since=max(0.0, seconds - over)
    )
