"""As an actor module: the cron jobs of a run. One comes every ten seconds, one only when an operator asks for it.

Each run records when it began and ended (`history.Ran`). Some runs of the first job last longer than a claim.
"""

from __future__ import annotations

import asyncio
import os
from datetime import datetime
from typing import Final

from chaos.deployment import CONSUMING
from chaos.history import History, Ran, now
from relay.bus import Command, CommandBus
from relay.cron import cron

STEADY: Final = "chaos-steady"
ASKED: Final = "chaos-asked"
#: How long the runs of the steady job take, in turn, and those of the other one, in seconds.
_STEADY_SECONDS: Final = (0.5, 11.0, 2.0)
_ASKED_SECONDS: Final = 1.0
_EVERY: Final = 10

bus: Final = CommandBus()


class Work(Command[None]):
    """Take so long."""

    job: str
    seconds: float


@bus.handles(Work)
async def work(command: Work) -> None:
    """Work, and record it, also when cancelled. A killed worker records nothing."""
    began, done = now(), False
    try:
        await asyncio.sleep(command.seconds)
        done = True
    finally:
        _record(Ran(command.job, began, now(), done))


def _record(run: Ran) -> None:
    from relay.worker import settings  # noqa: PLC0415 - it loads this module

    assert settings.failpoints is not None
    # The worker's levers; the records are beside those of all workers: see `rig`.
    history = History(settings.failpoints.parents[1] / "history" / f"runs-{os.getpid()}.jsonl")
    history.write(run)
    history.close()


@cron(f"*/{_EVERY} * * * * *", bus=bus, context=CONSUMING, name=STEADY)
async def steady(at: datetime) -> Work:
    """Every ten seconds."""
    turn = int(at.timestamp()) // _EVERY % len(_STEADY_SECONDS)
    return Work(job=STEADY, seconds=_STEADY_SECONDS[turn])


@cron("0 0 1 1 *", bus=bus, context=CONSUMING, name=ASKED)
async def asked() -> Work:
    """Once a year, and whenever an operator wants it."""
    return Work(job=ASKED, seconds=_ASKED_SECONDS)
