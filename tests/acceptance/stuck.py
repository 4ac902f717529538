"""Duties that hang in the middle of their job, loaded by the processes of a test as a module of actors.

A file of a duty's name in the directory STUCK has its next run hang; every run that begins leaves a file in
``begun``. A scheduler with this module sends what others send every few seconds once an hour.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from relay.adapters.gate import Gates
from scheduler import ticks

_STUCK: Final = Path(os.environ["STUCK"])
_SELDOM: Final = timedelta(hours=1)
_hold = Gates.hold


@asynccontextmanager
async def hold(gates: Gates, duty: str, token: str) -> AsyncIterator[bool]:
    async with _hold(gates, duty, token) as ours:
        if ours:
            (_STUCK / "begun" / f"{duty} {token}").touch()
            await _hang(duty)
        yield ours


async def _hang(duty: str) -> None:
    try:
        (_STUCK / duty).unlink()
    except FileNotFoundError:
        return
    await asyncio.Event().wait()


Gates.hold = hold  # type: ignore[method-assign]
ticks.RECONCILE_EVERY = _SELDOM  # type: ignore[misc]
ticks._RECOVER = ticks._RESCUE = _SELDOM  # type: ignore[misc]
