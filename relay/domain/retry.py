"""How often and at what intervals a row is tried: exponential back-off with jitter (DESIGN §5, §6).

Whoever handles a row may say when instead: a service by ``Retry-After``, a function by `RetryLater`. A function's
retry policy says for each exception when, or `Never`, or `Dead`. `relay.domain.policies.decide` acts on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Self, TypeAlias

from relay.domain.errors import RelayError

#: Nothing may ask for a longer delay than this. Dramatiq delays no job for longer.
LONGEST_DELAY: Final = timedelta(days=7)
#: A row that is put off without spending an attempt waits at least so long.
_SHORTEST_FREE: Final = timedelta(seconds=1)
#: Thirty years: a timedelta holds no more than 2,700,000.
_MANY_SECONDS: Final = 10**9


class InvalidRetry(RelayError, ValueError):
    """A delay is none, or a retry policy does not answer as it must. The usual back-off applies instead."""

    code = "INVALID_RETRY"


class RetryLater(RelayError):
    """Raised by a handler, a task or a cron job: not now, but again after ``delay`` (HTTP 503 with Retry-After).

    ``delay``: seconds, or a timedelta. What the function wrote is rolled back. It spends no attempt while the row
    is younger than a day (``retry_after_for``). The wait is at most an hour for messages (``retry_after_max``), a
    day for tasks and cron jobs. Raises InvalidRetry.
    """

    code = "RETRY_LATER"

    def __init__(self, message: str = "asks to be called later", *, delay: timedelta | float) -> None:
        if not isinstance(message, str):
            raise InvalidRetry("the first argument is a text", field="message", hint="RetryLater(delay=30)")
        super().__init__(message)
        self.delay = min(max(read_delay(delay), timedelta(0)), LONGEST_DELAY)


class NoRetry(Enum):
    """What a retry policy says if an exception must not be followed by another attempt."""

    NEVER = "Never"
    DEAD = "Dead"


#: The message itself is at fault: no attempt can help. It is dead at once, of class ``deterministic``.
Never: Final = NoRetry.NEVER
#: Give up now, as after the last attempt: dead, of class ``exhausted``. An operator may requeue it.
Dead: Final = NoRetry.DEAD
#: Says how to go on after an exception of a function, in an attempt (from 1). A delay is in seconds or a
#: timedelta, up to seven days. It must answer at once.
RetryFunction: TypeAlias = Callable[[Any, int], timedelta | float | NoRetry]


def read_delay(value: object) -> timedelta:
    """A delay as a program gives it: seconds, or a timedelta. It may be negative. Raises InvalidRetry."""
    if isinstance(value, timedelta):
        return value
    is_nan = isinstance(value, float) and math.isnan(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and not is_nan:
        return timedelta(seconds=max(-_MANY_SECONDS, min(value, _MANY_SECONDS)))
    kind = "nan" if is_nan else f"a {type(value).__name__}"
    raise InvalidRetry(f"{kind} is no delay", field="delay", hint="give seconds or a timedelta")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait after the n-th failure: 1, 2, 4 … 60 seconds.

    The delay doubles from ``initial`` to ``maximum``. Jitter shortens it by up to the fraction ``jitter``, so
    that many rows that failed together do not return together. The delay never exceeds its nominal value.
    """

    initial: timedelta = timedelta(seconds=1)
    maximum: timedelta = timedelta(seconds=60)
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if self.initial <= timedelta(0) or self.maximum < self.initial or not 0 <= self.jitter < 0.5:
            raise ValueError("back-off needs 0 < initial <= maximum and 0 <= jitter < 0.5")

    def delay(self, failures: int, chance: float) -> timedelta:
        """The wait after ``failures`` failures (from 1); ``chance`` is a random number in [0, 1)."""
        if failures < 1:
            raise ValueError("a delay follows at least one failure")
        doublings = failures - 1
        # Compare before multiplying: after many failures, 2**failures would overflow a timedelta.
        capped = doublings >= (self.maximum // self.initial).bit_length()
        return self._shortened(self.maximum if capped else self.initial * 2**doublings, chance)

    def by_age(self, age: timedelta, chance: float) -> timedelta:
        """The wait of something that has waited for ``age`` already: as long again, within the same limits."""
        return self._shortened(min(max(age, self.initial), self.maximum), chance)

    def _shortened(self, nominal: timedelta, chance: float) -> timedelta:
        return nominal * (1 - self.jitter * chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and at what intervals a row is tried.

    ``longest``: the longest wait that its handler may ask for. ``patience``: while a row is younger, being put off
    by its handler spends no attempt. After that each call counts, so no row is put off for ever.
    """

    max_attempts: int = 20
    backoff: Backoff = Backoff()
    longest: timedelta = timedelta(days=1)
    patience: timedelta = timedelta(days=1)

    def after(self, failures: int, chance: float, says: timedelta | None = None) -> timedelta | None:
        """How long to wait after ``failures`` attempts have failed. None if no attempt is left.

        Every retry is decided here: of messages, tasks, cron jobs and events. ``chance``: see `Backoff.delay`.
        ``says``: what the handler or its policy says instead of the back-off.
        """
        if failures >= self.max_attempts:
            return None
        return self.backoff.delay(failures, chance) if says is None else says

    def granted(self, asked: timedelta, chance: float) -> timedelta:
        """How long to wait if a handler asks for a wait: at least as long, within the bounds.

        A little more by chance, because a service asks the same of many rows together.
        """
        wait = max(asked, _SHORTEST_FREE)
        return min(wait + min(wait, self.backoff.maximum) * (self.backoff.jitter * chance), self.longest)

    @classmethod
    def of(cls, max_attempts: int, initial: timedelta, maximum: timedelta) -> Self:
        """A policy whose back-off grows from ``initial`` to ``maximum``. Raises ValueError."""
        return cls(max_attempts=max_attempts, backoff=Backoff(initial=initial, maximum=maximum))


class Later(timedelta):
    """A delay that knows its reason in a few words, without payload: what Dramatiq's log and dashboard show."""

    why: str = ""

    @classmethod
    def of(cls, delay: timedelta, why: str) -> Self:
        """The delay, for a reason."""
        later = cls(delay.days, delay.seconds, delay.microseconds)
        later.why = why
        return later
