"""How often and at what intervals a row is tried: exponential back-off with jitter (DESIGN §5, §6)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Self


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
    """How often and at what intervals a row is tried."""

    max_attempts: int = 20
    backoff: Backoff = Backoff()

    def after(self, failures: int, chance: float) -> timedelta | None:
        """How long to wait after ``failures`` attempts have failed. None if no attempt is left.

        Every retry is decided here: of messages, tasks, cron jobs and events. ``chance``: see `Backoff.delay`.
        """
        return None if failures >= self.max_attempts else self.backoff.delay(failures, chance)

    @classmethod
    def of(cls, max_attempts: int, initial: timedelta, maximum: timedelta) -> Self:
        """A policy whose back-off grows from ``initial`` to ``maximum``. Raises ValueError."""
        return cls(max_attempts=max_attempts, backoff=Backoff(initial=initial, maximum=maximum))
