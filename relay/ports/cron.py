"""Where the runs of cron jobs are kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol
from uuid import UUID

from relay.domain.schedule import ClaimedRun, RunState, WaitingRun


class Runs(Protocol):
    """The runs of cron jobs. All methods raise DatabaseUnreachable.

    A claim is a lease on the database's clock, fenced by a token.
    """

    @property
    def lease(self) -> timedelta:
        """How long a claim holds without a renewal."""

    async def claim(self, run: WaitingRun, token: UUID, who: str) -> ClaimedRun | None:
        """Claim a run and count the attempt. None if there is nothing to do.

        Only one run of a job can be claimed at a time. A run whose lease is over is free again, but still the only
        one of its job.
        """

    async def renew(self, run: ClaimedRun) -> bool:
        """Renew the claim. False if it was lost."""

    async def settle(
        self,
        run: ClaimedRun,
        state: RunState,
        error: str | None = None,
        delay: timedelta = timedelta(),
        *,
        counts: bool = True,
    ) -> None:
        """Record how an attempt ended; without ``counts`` it was none.

        It may be repeated. It does nothing if another worker has the claim.
        """
