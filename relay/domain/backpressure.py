"""When an outbox is full, and when it is no longer full: the brake on its producers (MicroDAO §16)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

#: What happens to producers: they get a warning, wait a moment, or are refused.
BrakeAction = Literal["warn", "delay", "refuse"]
#: A brake is released below this part of its limits. Otherwise it would begin and end with every batch.
RELEASE: Final = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxLimits:
    """When an outbox is full, and what then happens to its producers.

    ``above``: how many events may wait to be published. ``age``: how long one may wait. ``delay``: how long a
    producer waits, once in each transaction.
    """

    above: int | None
    age: timedelta | None
    action: BrakeAction
    delay: timedelta

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return self.above is not None or self.age is not None


@dataclass(frozen=True, slots=True)
class Pressure:
    """What waits, and what happens to producers: an ``action`` and ``delay``, for ``remaining`` more seconds.

    ``waiting`` events have not been published, counted up to a limit. The first of them that a publisher could
    take has waited for ``seconds``. A ``remaining`` of 0 or less: the brake has ended by itself.
    """

    waiting: int
    seconds: float
    action: str | None = None
    delay: timedelta | None = None
    remaining: float = 0.0

    def tells(self, limits: OutboxLimits) -> bool:
        """Whether what happens to producers is what the limits say."""
        return (self.action, self.delay) == (limits.action, limits.delay)


@dataclass(slots=True)
class InboxLimit:
    """How many messages of a subscription may be unfinished before the pulls pause; whether they pause now.

    ``room``: how many messages may still be pulled before they must be counted again.
    """

    most: int
    paused: bool = False
    room: int = 0

    def counted(self, unfinished: int) -> bool:
        """Note a count, up to ``most``; returns whether it starts or ends a pause."""
        before, self.paused = self.paused, unfinished >= self.most * (RELEASE if self.paused else 1.0)
        self.room = 0 if self.paused else self.most - unfinished
        return self.paused != before


def full(context: str, limits: OutboxLimits, pressure: Pressure) -> str | None:
    """Say why the outbox of a context is full; None if it is not."""
    part = 1.0 if pressure.action is None else RELEASE
    if limits.above is not None and pressure.waiting > limits.above * part:
        return f"the outbox of {context} is full: its limit is {limits.above} waiting events"
    if limits.age is not None and pressure.seconds > limits.age.total_seconds() * part:
        return f"the outbox of {context} is full: its limit is a wait of {limits.age.total_seconds():g} s"
    return None
