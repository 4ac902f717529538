"""Duties that hang in the middle of their job, loaded by the processes of a test as a module of actors.

A file of a duty's name in the directory STUCK has its next run hang; every run that begins leaves a file in
``begun``. So it is with the routines of a duty. A process with this module does once an hour what others do often.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import uuid4

from consumer import upkeep
from consumer.routines import Routine
from relay.adapters.dramatiq.gates import Gates
from scheduler import ticks

_STUCK: Final = Path(os.environ["STUCK"])
_SELDOM: Final = timedelta(hours=1)
_hold = Gates.hold
_routines = upkeep.routines_of


@asynccontextmanager
async def hold(gates: Gates, duty: str, token: str) -> AsyncIterator[bool]:
    async with _hold(gates, duty, token) as ours:
        if ours:
            await _begin(duty)
        yield ours


def routines(context: str, unfinished: Collection[str] | None) -> Iterator[Routine]:
    for routine in _routines(context, unfinished):
        yield replace(routine, every=_SELDOM, run=lambda routine=routine: _run(routine))


async def _run(routine: Routine) -> None:
    await _begin(routine.name)
    await routine.run()


async def _begin(duty: str) -> None:
    (_STUCK / "begun" / f"{duty} {uuid4()}").touch()
    try:
        (_STUCK / duty).unlink()
    except FileNotFoundError:
        return
    await asyncio.Event().wait()


Gates.hold = hold  # type: ignore[method-assign]
upkeep.routines_of = routines
ticks.RECONCILE_EVERY = _SELDOM  # type: ignore[misc]
