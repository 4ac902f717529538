"""Rows whose result cannot be recorded, because the database refuses to change them.

A trigger or a constraint of an application may refuse every change of a row. Nothing about such a row can be
written down, so the process remembers it, and its claims leave it out: it never takes the place of another twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

#: For how long a row is left alone the first time, in seconds. Doubles each time.
_FIRST_S: Final = 10.0
_LONGEST_S: Final = 3600.0
#: So many rows are remembered. Then the oldest is forgotten: a claim names all of them.
_MOST: Final = 20_000


class UnsettledRows:
    """The rows that one process leaves alone, by their ids. For one event loop."""

    def __init__(self) -> None:
        #: Until when each is left alone, and for how long this time.
        self._rows: dict[str, tuple[float, float]] = {}

    def note(self, ids: Iterable[str]) -> None:
        """Leave these alone from now on, each for twice as long as the last time."""
        now = time.monotonic()
        for id in ids:
            pause = min(2 * self._rows.pop(id, (0.0, _FIRST_S / 2))[1], _LONGEST_S)
            self._rows[id] = (now + pause, pause)
        for id in [*self._rows][: max(0, len(self._rows) - _MOST)]:
            del self._rows[id]

    def ids(self) -> list[str]:
        """Those that are left alone now."""
        if not self._rows:
            return []
        now = time.monotonic()
        return [id for id, (until, _) in self._rows.items() if until > now]
