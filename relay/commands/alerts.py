"""Sends alerts: states a fact for each, and posts it to a webhook if there is one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Protocol, TypeAlias

from relay.domain.alerts import LASTING, Alert, AlertClass, Cause, alerts_of
from relay.domain.errors import AlertRefused
from relay.domain.facts import AlertFailed, AlertRaised, FactSink

#: The pause after a webhook refused an alert. It doubles each time, up to the second.
_PAUSE: Final = timedelta(seconds=2), timedelta(seconds=30)
#: No further alert is begun after this time. The next run goes on.
_PATIENCE: Final = timedelta(seconds=1.5)


#: What shares an alert.
Group: TypeAlias = tuple[AlertClass, str, str]


class Unsent(Protocol):
    """The causes that wait for their alert, held by one sender at a time. The end of the block commits."""

    @property
    def causes(self) -> Sequence[Cause]:
        """The oldest ones, also those that need nobody any more."""

    async def told(self, ids: Collection[int]) -> None:
        """Note that the facts were stated."""

    async def sent(self, ids: Collection[int], *, posted: bool) -> None:
        """Note that nothing is left to do. ``posted``: the webhook has taken the alert."""

    async def recent(self) -> tuple[int, dict[Group, float]]:
        """How many alerts were posted within the last minute; for each group, how many seconds ago."""


class AlertRecords(Protocol):
    """Where the causes of alerts are kept. All methods raise DatabaseUnreachable."""

    async def waiting(self) -> bool:
        """Whether any cause waits. Cheap: it is asked all the time."""

    def unsent(self) -> AbstractAsyncContextManager[Unsent | None]:
        """Hold the causes that wait; None while another sender holds them."""


class AlertChannel(Protocol):
    """Where alerts go."""

    async def send(self, body: bytes) -> None:
        """Deliver one alert. Raises AlertRefused."""


@dataclass(slots=True, kw_only=True)
class SendAlerts:
    """Sends the alerts of one context, at most ``per_minute`` in the whole fleet, and of one group more rarely.

    Causes that come faster share an alert. The table keeps them until the webhook has taken their alert, so
    neither a crash nor an outage of the webhook loses one. A crash after the webhook's answer repeats an alert.

    ``channel`` None: only facts. ``classes``, ``subscriptions``: which alerts go to the channel; empty: all.
    """

    context: str
    alerts: AlertRecords
    channel: AlertChannel | None
    facts: FactSink
    per_minute: int = 6
    runbook: str = ""
    classes: Collection[str] = ()
    subscriptions: Collection[str] = ()
    clock: Callable[[], float] = time.monotonic
    #: The groups whose alert was refused: until when each rests, and for how long. Others go on meanwhile.
    _rests: dict[Group, tuple[float, timedelta]] = field(init=False, default_factory=dict)
    #: Whether the last alert was about a condition.
    _condition_last: bool = field(init=False, default=True)

    async def run(self) -> int:
        """Send what is due; returns how many causes it covers. Raises DatabaseUnreachable.

        Each alert is a transaction of its own, so that a crash repeats one alert at most.
        """
        end, covered = self.clock() + _PATIENCE.total_seconds(), 0
        while self.clock() <= end and await self.alerts.waiting():
            done = await self._next()
            if done is None:
                break
            covered += done
        return covered

    async def _next(self) -> int | None:
        """State the facts of new causes, and send one alert. None if there is nothing left to do now."""
        async with self.alerts.unsent() as held:
            if held is None:
                return None
            needed = [it for it in held.causes if it.open]
            await self._tell(held, [it for it in needed if not it.told])
            unwanted = [it.id for it in held.causes if not it.open or not self._wanted(it)]
            if unwanted:
                await held.sent(unwanted, posted=False)
            found = alerts_of(self.context, [it for it in needed if self._wanted(it)], self.runbook)
            if self.channel is None or not found:
                return None
            return await self._post(held, found, self.channel)

    async def _tell(self, held: Unsent, causes: Sequence[Cause]) -> None:
        for alert in alerts_of(self.context, causes, self.runbook):
            self.facts(_fact(alert))
        if causes:
            await held.told([it.id for it in causes])

    async def _post(self, held: Unsent, found: Sequence[Alert], channel: AlertChannel) -> int | None:
        posted, ago = await held.recent()
        spacing = 60 / self.per_minute
        now = self.clock()
        due = [it for it in found if ago.get(it.group, spacing) >= spacing and self._rests_until(it.group) <= now]
        if posted >= self.per_minute or not due:
            return None
        # Failures and conditions take turns: however many there are of the one, they do not delay the other.
        alert = min(due, key=lambda it: (it.kind in LASTING) is self._condition_last)
        try:
            await channel.send(alert.body())
        except AlertRefused as error:
            waiting = sum(it.count for it in found)
            self.facts(AlertFailed(context=self.context, error=error.message, waiting=waiting))
            _, before = self._rests.get(alert.group, (0.0, _PAUSE[0] / 2))
            pause = min(2 * before, _PAUSE[1])
            self._rests[alert.group] = self.clock() + pause.total_seconds(), pause
            return None
        self._rests.pop(alert.group, None)
        self._condition_last = alert.kind in LASTING
        await held.sent(alert.ids, posted=True)
        return alert.count

    def _rests_until(self, group: Group) -> float:
        return self._rests.get(group, (0.0, _PAUSE[0]))[0]

    def _wanted(self, cause: Cause) -> bool:
        """Whether the channel gets it."""
        named = not self.classes or cause.kind.value in self.classes
        of_one = not self.subscriptions or (
            cause.subject_type == "subscription" and self._short(cause.subject) in self.subscriptions
        )
        return self.channel is not None and named and of_one

    def _short(self, subject: str) -> str:
        """The name of a subscription. A finding writes its context before it."""
        return subject.removeprefix(f"{self.context}.")


def _fact(alert: Alert) -> AlertRaised:
    return AlertRaised(
        context=alert.context,
        kind=alert.kind.value,
        state=alert.state.value,
        subject_type=alert.subject_type,
        subject=alert.subject,
        reason_code=alert.reason_code,
        text=alert.text,
        since=alert.since,
        count=alert.count,
        runbook=alert.runbook,
    )
