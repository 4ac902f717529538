"""The lead of one context, held by a lease in that context's own database.

So an outage of one database stops the jobs of its own context only. Each scheduler leads the contexts whose
lease it holds. The database's clock decides. A process only measures the time since its last renewal.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from relay.adapters.postgres.schedule import PostgresLease
from relay.domain.schedule import Lead

#: How many renewals fit into a lease. Two attempts may fail, and the lease is still kept.
_RENEWALS: Final = 3.4
#: The longest pause between two looks at a lease, in seconds. A holder may give it up; operators request jobs.
_LOOK: Final = 1.5
#: How soon after the end of another process's lease to try to take it, in seconds.
_AFTER: Final = 0.05


class Lease:
    """Knows whether this process leads. ``held`` ends no later than the lease in the database.

    After a long pause of the process ``held`` is false at once, without a query.
    """

    def __init__(self, store: PostgresLease, ttl: timedelta) -> None:
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
        """Take or renew the lease. Raises DatabaseUnreachable and SchemaMissing; the lease can then expire."""
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
        """Let another scheduler lead from now on. Raises DatabaseUnreachable and SchemaMissing."""
        self._until = 0.0
        await self._store.release()
