"""The brake on producers of a full outbox: the leading scheduler decides, and writes it into the database.

A brake ends by itself, by the clock of the database. So a scheduler that stops or loses the lead leaves no brake
for ever. While a scheduler leads, an overload does not end the brake: a check that takes too long leaves it as it
is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from relay.adapters.postgres.brake import ProducerBrake
from relay.domain.backpressure import Pressure, full
from relay.domain.facts import FactSink, ProducersBraked, ProducersReleased
from relay.settings import ContextSettings

#: How often to check.
EVERY: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrakeTimes:
    """How long a brake lasts, and how often to check. Times in seconds.

    ``hold``: a brake ends after this time, and is prolonged when half of it is over. ``pause_factor``: the pause
    after a check is at least so many times as long as the check took. ``blind``: for so long, checks without an
    answer prolong the brake. Then the outbox may be empty.
    """

    hold: float = 30.0
    pause_factor: float = 20.0
    blind: float = 600.0


BRAKE_TIMES: Final = BrakeTimes()


class BrakeTick:
    """Checks whether the outbox of a context is full, and begins or ends the brake."""

    def __init__(
        self, context: ContextSettings, brake: ProducerBrake, facts: FactSink, times: BrakeTimes = BRAKE_TIMES
    ) -> None:
        self._context, self._brake, self._facts, self._times = context.name, brake, facts, times
        self._limits = context.backpressure.limits()
        self._publish = context.publish
        self._rest_until = 0.0
        self._seen = time.monotonic()

    def take_over(self) -> None:
        """Check at once, and forget what this process knew when it last led: that is old."""
        self._rest_until, self._seen = 0.0, time.monotonic()

    async def tick(self) -> None:
        """Check once, unless it is too soon after a check that took long. Raises DatabaseUnreachable."""
        begun = time.monotonic()
        if begun < self._rest_until:
            return
        blocks = self._publish.dead_head == "block"
        pressure = await self._brake.pressure(self._limits, self._publish.backoff_max, dead_head_blocks=blocks)
        ended = time.monotonic()
        rest = self._times.pause_factor * (ended - begun)
        hold = timedelta(seconds=self._times.hold + 2 * rest)
        if pressure is not None:
            self._seen = ended
            await self._apply(pressure, rest, hold)
        elif ended - self._seen < self._times.blind:
            await self._brake.keep(hold)
        # Only now: if the write failed, the next tick tries it again.
        self._rest_until = begun + rest

    async def _apply(self, pressure: Pressure, rest: float, hold: timedelta) -> None:
        reason = full(self._context, self._limits, pressure)
        if reason is None:
            if pressure.action is not None:
                await self._brake.release()
                self._facts(ProducersReleased(context=self._context))
        elif pressure.remaining < self._times.hold / 2 + rest or not pressure.tells(self._limits):
            await self._brake.set(self._limits, reason, hold)
            if pressure.action is None or pressure.remaining <= 0:
                self._report(pressure, reason)

    def _report(self, pressure: Pressure, reason: str) -> None:
        self._facts(
            ProducersBraked(
                context=self._context,
                action=self._limits.action,
                reason=reason,
                waiting=pressure.waiting,
                age_seconds=pressure.seconds,
            )
        )
