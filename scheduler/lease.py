"""The lead of one context, held by a lease in that context's own database.

So an outage of one database stops the jobs of its context and of no other, and each scheduler leads the
contexts whose lease it holds. Time is the database's; a process only measures how long ago it last heard.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final, Protocol

from relay.domain.schedule import Lead

#: A lease is renewed so many times in its life: two attempts may fail, and it is still kept.
_RENEWALS: Final = 3.4
#: However long the lease, it is looked at so often, in seconds: it may be given up, and operators ask for jobs.
_LOOK: Final = 1.5
#: How soon after the end of another's lease it is tried, in seconds.
_AFTER: Final = 0.05


class LeaseStore(Protocol):
    """The lease's row. Both raise DatabaseUnreachable and SchemaMissing."""

    async def take(self, ttl: timedelta) -> Lead:
        """Take the lead or keep it for ``ttl``; says whose it is."""

    async def release(self) -> None:
        """Give it up at once, if it is ours."""


class Lease:
    """Whether this process leads. ``held`` ends no later than the lease in the database does.

    A process that was paused finds ``held`` false when it goes on, before it has asked anybody.
    """

    def __init__(self, store: LeaseStore, ttl: timedelta) -> None:
        self._store = store
        self._ttl = ttl
        self._until = 0.0
        #: When to try again, in seconds.
        self.pause = 0.0

    @property
    def held(self) -> bool:
        """Whether this process leads now."""
        return time.monotonic() < self._until

    async def take(self) -> Lead:
        """Take or renew the lease. Raises DatabaseUnreachable and SchemaMissing; it runs out by itself then."""
        self.pause = min(_LOOK, self._ttl.total_seconds() / _RENEWALS)
        asked = time.monotonic()
        lead = await self._store.take(self._ttl)
        if lead.term is None:
            self._until = 0.0
            self.pause = min(self.pause, lead.remaining + _AFTER)
        else:
            self._until = asked + self._ttl.total_seconds()
        return lead

    async def release(self) -> None:
        """Let another scheduler lead from now on."""
        self._until = 0.0
        await self._store.release()
