"""The times at which faults were under way."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from chaos.history import Fault


class Windows:
    """Questions about the times of some faults. Times are Unix times."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = faults
        self._began = sorted(fault.began for fault in faults)
        self._ended = sorted(fault.ended for fault in faults)
        self._merged = _merged(faults)
        self._starts = [began for began, _ in self._merged]

    def active(self, at: float) -> int:
        """How many faults were under way."""
        return bisect_right(self._began, at) - bisect_left(self._ended, at)

    def within(self, first: float, last: float) -> list[Fault]:
        """Return the faults that were active at some moment of an interval."""
        return [fault for fault in self._faults if fault.began <= last and fault.ended >= first]

    def any_within(self, first: float, last: float) -> bool:
        """Whether a fault was under way at some moment of a time."""
        index = bisect_right(self._starts, last)
        return index > 0 and self._merged[index - 1][1] >= first

    def covered(self, first: float, last: float, *, more: float = 0.0) -> float:
        """Return for how many seconds of an interval a fault was active or had ended at most ``more`` ago."""
        seconds, at = 0.0, first
        for began, ended in self._between(first - more, last):
            begins, ends = max(began, at), min(ended + more, last)
            if ends > begins:
                seconds, at = seconds + ends - begins, ends
        return seconds

    def calm(self, first: float, last: float) -> float:
        """Return for how many seconds of an interval no fault was active."""
        return max(0.0, last - first) - self.covered(first, last)

    def longest_calm(self, first: float, last: float) -> float:
        """Return the longest time without a fault within an interval, in seconds."""
        longest, at = 0.0, first
        for began, ended in self._between(first, last):
            longest, at = max(longest, began - at), max(at, ended)
        return max(longest, last - at)

    def _between(self, first: float, last: float) -> Sequence[tuple[float, float]]:
        low = max(0, bisect_right(self._starts, first) - 1)
        return self._merged[low : bisect_right(self._starts, last)]


def _merged(faults: Sequence[Fault]) -> list[tuple[float, float]]:
    """The union of the faults' times, as intervals that do not overlap."""
    merged: list[tuple[float, float]] = []
    for began, ended in sorted((fault.began, fault.ended) for fault in faults):
        if merged and began <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended))
        else:
            merged.append((began, ended))
    return merged
