"""For the tests of where claims begin."""

from __future__ import annotations

from typing import Any

from tests.integration.publishing import ALL, Relay, event


def marks_of(command: Any) -> dict[int, int]:
    return dict(command._outbox._marks._marks)


async def busy(relay: Relay, command: Any) -> None:
    """Publish other events in every lane, in several claims. Those of more keys at a time would lock the lanes."""
    for part in range(6):
        relay.add(*[event(f"other{n}") for n in range(50 * part, 50 * (part + 1))])
        await command.drain(ALL)
