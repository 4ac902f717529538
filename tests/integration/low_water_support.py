"""For the tests of where claims begin."""

from __future__ import annotations

from typing import Any

import pytest

from relay.adapters.postgres.low_water import LowWaterMarks, SearchLimits
from tests.integration.publishing import ALL, Relay, event

#: Every claim is a slow one.
EAGER = SearchLimits(slow=-1.0, together=0.0, pause=0.0)


def marks_used(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The marks with which claims begin from now on."""
    used, find = [], LowWaterMarks.find

    async def recorded(self: LowWaterMarks, *arguments: Any) -> list[int] | None:
        marks = await find(self, *arguments)
        if marks is not None:
            used.append(marks)
        return marks

    monkeypatch.setattr(LowWaterMarks, "find", recorded)
    return used


def marks_of(command: Any) -> dict[int, int]:
    return dict(command._outbox._marks._marks)


async def busy(relay: Relay, command: Any) -> None:
    """Publish other events in every lane, in several claims. Those of more keys at a time would lock the lanes."""
    for part in range(6):
        relay.add(*[event(f"other{n}") for n in range(50 * part, 50 * (part + 1))])
        await command.drain(ALL)
