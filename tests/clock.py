"""The clock of tests: it stands still until a test moves it."""

from __future__ import annotations


class Clock:
    """A source of seconds. Give it to what takes a function that returns the time."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def monotonic(self) -> float:
        """For what takes the module ``time``."""
        return self.now
