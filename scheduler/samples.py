"""What a scheduler reads for the metrics, and for autoscalers that ask at /scale."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import replace

from relay.bootstrap import Application
from relay.commands.lag import CONTEXTS_AT_ONCE
from relay.domain.facts import BacklogsSampled, LagSampled


async def sample_backlogs(application: Application, context: str) -> None:
    """Count what waits, for the metrics. Raises DatabaseUnreachable and SchemaMissing."""
    parts = application.context(context)
    backlogs, standing = await parts.backlogs.backlogs(), await parts.movements.standing()
    application.facts(BacklogsSampled(context=context, backlogs=replace(backlogs, standing=standing)))


async def sample_lag(application: Application, context: str) -> None:
    """Read how much is due. What could not be read is an error in the fact."""
    application.facts(LagSampled(context=context, lag=await application.lag(context).read()))


class Samples:
    """Reads the lag when asked, in any thread. Make it in the event loop of the application."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(CONTEXTS_AT_ONCE)

    def ask(self, context: str) -> Future[None]:
        """Begin to read the lag of a context. The result is a fact."""
        return asyncio.run_coroutine_threadsafe(self._read(context), self._loop)

    async def _read(self, context: str) -> None:
        async with self._room:
            await sample_lag(self._application, context)
