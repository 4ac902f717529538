"""The fleet as operators see it: its members, what each runs now, and which scheduler leads each context."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from relay.domain.errors import RelayError
from relay.domain.members import Seen
from relay.domain.running import FleetNow, fleet_of
from relay.ops.requests import RunsNow

#: So long the fleet waits for a context, in seconds: the others are shown without it.
_PATIENCE_S: Final = 3.0


async def read_fleet(
    members: Iterable[Seen], contexts: Iterable[str], ask: Callable[[str], Awaitable[RunsNow]]
) -> FleetNow:
    """Ask each context what runs in it, all at once. One that does not answer in time is ``unread``."""
    names = list(contexts)
    answers = await asyncio.gather(*(_patiently(ask, name) for name in names))
    found = [(name, it) for name, it in zip(names, answers, strict=True) if not isinstance(it, str)]
    return fleet_of(
        list(members),
        [row for _, it in found for row in it.running],
        {name: it for name, it in zip(names, answers, strict=True) if isinstance(it, str)},
        {name: it.leader for name, it in found},
    )


async def _patiently(ask: Callable[[str], Awaitable[RunsNow]], context: str) -> RunsNow | str:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await ask(context)
    except TimeoutError:
        return f"no answer within {_PATIENCE_S:g} s"
    except RelayError as error:
        return str(error)
