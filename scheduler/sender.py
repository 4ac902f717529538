"""Enqueues the jobs of duties, each through its gate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from relay import jobs
from relay.adapters.redis import RelayBroker
from relay.bootstrap import Application
from relay.commands.reconcile import EVERY as RECONCILE_EVERY
from relay.domain.errors import Outage
from relay.domain.facts import OutageSeen
from relay.domain.schedule import WaitingRun
from relay.jobs import Duty

#: How late a tick may be before its duty counts as lost.
_LATE: Final = timedelta(seconds=5)


class Sender:
    """Enqueues jobs. An outage of Redis is reported, not raised; a later tick tries again."""

    def __init__(self, application: Application, broker: RelayBroker) -> None:
        self._application = application
        self._broker = broker

    async def job(
        self, duty: Duty, *more: int, force: bool = False, every: timedelta | None = None, **known: list[str]
    ) -> bool:
        """Enqueue a job unless its duty has an outstanding one; ``force`` replaces that one.

        ``every``: the interval of a duty whose job is sent again when it was lost.
        """
        try:
            token = await self._application.gates.open(
                duty.key,
                force=force,
                interval=timedelta() if every is None else every + _LATE,
                send=lambda token: self._broker.entry(duty.message(token, *more, **known)),
            )
        except Outage as error:
            self._application.facts(OutageSeen(context=duty.context, server="redis", error=error.told))
            return False
        return token is not None

    async def some(self, duties: Sequence[Duty], *more: int, force: bool = False) -> bool:
        """Enqueue a job for each duty that has none outstanding; returns whether none had.

        One question finds out which. ``force`` replaces outstanding jobs.
        """
        found = {duty.key: duty for duty in duties}
        wanted = duties if force else [found[key] for key in await self._application.gates.lost(list(found))]
        return all([await self.job(it, *more, force=force) for it in wanted]) and len(wanted) == len(duties)

    async def job_if(self, needed: Callable[[], Awaitable[bool]], duty: Duty) -> bool | None:
        """Enqueue a job if it is needed; returns whether an outstanding job will do it, None if not needed.

        So an idle context costs one query, and workers nothing. Raises DatabaseUnreachable.
        """
        return not await self.job(duty) if await needed() else None

    async def absent(self, duties: Mapping[str, Duty]) -> None:
        """Enqueue a job of each duty that has none outstanding. One question for all contexts finds out which."""
        for key in await self._application.gates.lost(list(duties)):
            await self.job(duties[key])

    async def runs(self, context: str, runs: Sequence[WaitingRun]) -> None:
        """Enqueue runs of cron jobs. They need no gates, because each run has a row."""
        messages = [jobs.run_cron(context, run) for run in runs]
        try:
            if messages:
                await asyncio.to_thread(self._broker.enqueue_many, messages)
        except Outage as error:
            self._application.facts(OutageSeen(context=context, server="redis", error=error.told))

    async def all_parts(self, duty: Duty) -> None:
        """Make all parts of a duty due for its next job, also those that were done lately."""
        try:
            await self._application.gates.forget_rest(duty.key)
        except Outage as error:
            self._application.facts(OutageSeen(context=duty.context, server="redis", error=error.told))

    async def audit(self, duty: Duty) -> bool:
        """Enqueue an audit. The clock decides which page it reads, so no process has to remember it."""
        page = int(time.time() / RECONCILE_EVERY.total_seconds())
        return await self.job(duty, page, every=RECONCILE_EVERY)
