"""The brake on producers of a full outbox: the leading scheduler decides, and writes it into the database.

A brake ends by itself, by the clock of the database. So a scheduler that stops or loses the lead leaves no brake
for ever. While a scheduler leads, an overload does not end the brake: a check that takes too long leaves it as it
is.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from relay.adapters.postgres.brake import ProducerBrake
from relay.domain.backpressure import Pressure, full
from relay.domain.facts import FactSink, ProducersBraked, ProducersReleased
from relay.settings import ContextSettings

#: How often to check.
EVERY: Final = timedelta(seconds=1)
#: How long a brake lasts, in seconds. It is prolonged when half of this time is over.
HOLD_S: Final = 30.0
#: The pause after a check is at least so many times as long as the check took.
_PAUSE_FACTOR: Final = 20
#: For how long checks without an answer prolong the brake, in seconds. Then the outbox may be empty.
_BLIND_S: Final = 600.0


class BrakeTick:
    """Checks whether the outbox of a context is full, and begins or ends the brake."""

    def __init__(self, context: ContextSettings, brake: ProducerBrake, facts: FactSink) -> None:
        self._context, self._brake, self._facts = context.name, brake, facts
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
        found = await self._brake.pressure(self._limits, self._publish.backoff_max, dead_head_blocks=blocks)
        ended = time.monotonic()
        rest = _PAUSE_FACTOR * (ended - begun)
        hold = timedelta(seconds=HOLD_S + 2 * rest)
        if found is not None:
            self._seen = ended
            await self._tell(found, rest, hold)
        elif ended - self._seen < _BLIND_S:
            await self._brake.keep(hold)
        # Only now: if the write failed, the next tick tries it again.
        self._rest_until = begun + rest

    async def _tell(self, found: Pressure, rest: float, hold: timedelta) -> None:
        reason = full(self._context, self._limits, found)
        if reason is None:
            if found.action is not None:
                await self._brake.release()
                self._facts(ProducersReleased(context=self._context))
        elif found.remaining < HOLD_S / 2 + rest or not found.tells(self._limits):
            await self._brake.set(self._limits, reason, hold)
            if found.action is None or found.remaining <= 0:
                self._say(found, reason)

    def _say(self, found: Pressure, reason: str) -> None:
        self._facts(
            ProducersBraked(
                context=self._context,
                action=self._limits.action,
                reason=reason,
                waiting=found.waiting,
                age_seconds=found.seconds,
            )
        )
