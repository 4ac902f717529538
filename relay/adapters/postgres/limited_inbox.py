"""Claims of a subscription that an operator has limited: how many run at once, and how many begin in a time.

The limits are those of tasks (`relay.adapters.postgres.tasks`): checked in the transaction of the claim, with the
same statements for slots of a rate. Only a subscription with a limit pays for them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from relay.adapters.postgres.inbox import PostgresInboxAdapter, claimed
from relay.adapters.postgres.pipeline import fetch
from relay.adapters.postgres.pool import Connection, Pool, query
from relay.adapters.postgres.rates import begin, turn
from relay.adapters.postgres.sql import statement
from relay.domain.controls import LOOK_AGAIN, Limit, What, rate_key, rate_of_key
from relay.domain.tasks import PutOff, looks_again
from relay.ports import ClaimedMessage

#: When too many messages run, another tries again after this time, or when one of them ends.
_FULL_WAIT: Final = timedelta(seconds=15)


class LimitedInbox:
    """The claims of one subscription under a limit. All methods raise DatabaseUnreachable."""

    def __init__(self, pool: Pool, inbox: PostgresInboxAdapter, subscription: str) -> None:
        self._pool, self._inbox, self._subscription = pool, inbox, subscription
        self._key = rate_key(What.SUBSCRIPTION, subscription)

    async def claim(
        self, message_id: UUID, lease: timedelta, max_attempts: int, limit: Limit
    ) -> ClaimedMessage | PutOff | None:
        """Claim a message if it is free and the limit lets it begin. Otherwise it is put off: no attempt."""
        since = time.monotonic()
        async with self._pool.connection() as conn, conn.transaction():
            if limit.concurrency is not None:
                await conn.execute(statement("tasks/lock_concurrency"), {"key": self._key})
            if not (rows := await query(conn, "inbox/lock_limited", message_id=message_id)):
                return None
            [(promised, of)] = rows
            key = rate_of_key(self._key, of) if limit.per_key else self._key
            held = await self._full(conn, limit) or await turn(
                conn,
                key,
                limit.interval,
                promised=promised,
                again=lambda rate: looks_again(rate, message_id, LOOK_AGAIN),
            )
            if held is not None:
                delay = _bounded(held.delay, limit)
                how = "inbox/put_off_key" if limit.per_key and held.waits_for == "turn" else "inbox/put_off"
                await conn.execute(statement(how), {"message_id": message_id, "delay": delay})
                return PutOff(delay, held.waits_for)
            command = self._inbox.claim_command(message_id, lease, max_attempts)
            found = await fetch(conn, command)
            if not found:
                return None
            if limit.interval is not None:
                await begin(conn, key, limit.interval, per_key=limit.per_key)
            return claimed(command, found[0], since)

    async def next(self) -> Sequence[UUID]:
        """One has ended: return the message that has waited longest for room; none or one."""
        async with self._pool.connection() as conn, conn.transaction():
            await conn.execute(statement("tasks/lock_concurrency"), {"key": self._key})
            return [id for (id,) in await query(conn, "inbox/next_limited", subscription=self._subscription)]

    async def _full(self, conn: Connection, limit: Limit) -> PutOff | None:
        if limit.concurrency is None:
            return None
        [(count,)] = await query(conn, "inbox/running", subscription=self._subscription)
        return PutOff(_FULL_WAIT, "room") if count >= limit.concurrency else None


def _bounded(delay: timedelta, limit: Limit) -> timedelta:
    """A limit that ends holds nothing for longer."""
    left = LOOK_AGAIN if limit.until is None else limit.until - datetime.now(UTC)
    return max(timedelta(milliseconds=1), min(delay, left, LOOK_AGAIN))
