"""Background tasks in task_outbox: delivered to a queue, claimed by a worker, and ended.

Claims are leases by the clock of the database. The claim's token fences every later write. Limits are checked in
the transaction of the claim, so they hold whatever happens to Redis.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from psycopg.errors import DivisionByZero

from relay.adapters.postgres import array
from relay.adapters.postgres.claimant import claim_token, note_of
from relay.adapters.postgres.pipeline import Command
from relay.adapters.postgres.pool import Connection, Pool, query
from relay.adapters.postgres.rates import begin, turn
from relay.adapters.postgres.sql import statement
from relay.domain.controls import Limit, rate_of_key
from relay.domain.disclosure import clean
from relay.domain.policies import EXPIRED, DeadLetter, Retry
from relay.domain.tasks import ClaimedTask, PutOff, TaskRef

#: When a task is this long overdue to begin, the sweep treats it as lost.
GRACE: Final = timedelta(seconds=5)
#: When too many tasks of a key run, another task tries again after this time, or when one of them ends.
_FULL_WAIT: Final = timedelta(seconds=8)


class PostgresTasks:
    """The tasks of one context.

    ``grace``: when a task is this long overdue to begin, the sweep treats it as lost.
    """

    def __init__(self, pool: Pool, *, grace: timedelta = GRACE) -> None:
        self._pool = pool
        self._grace = grace

    # --- on the way to a queue ---

    async def pending_queues(self) -> Sequence[str]:
        """Return the queues that have due tasks. Raises DatabaseUnreachable, as all methods here do."""
        async with self._pool.connection() as conn:
            return [queue for (queue,) in await query(conn, "tasks/pending_queues")]

    @asynccontextmanager
    async def deliver(self, queue: str, limit: int) -> AsyncIterator[Sequence[TaskRef]]:
        """Mark up to ``limit`` due tasks of a queue as delivered. This commits when the block ends.

        Other processes wait for these rows until then. An exception in the block releases them.
        """
        async with self._pool.connection() as conn, conn.transaction():
            rows = await query(conn, "tasks/claim_pending", queue=queue, limit=limit)
            # UPDATE ... RETURNING keeps no order.
            yield [TaskRef(id, name, queue, priority) for priority, _, id, name, queue in sorted(rows)]

    async def overdue_queues(self) -> Sequence[str]:
        """Return the queues that have overdue tasks, and so have probably lost some."""
        async with self._pool.connection() as conn:
            return [queue for (queue,) in await query(conn, "tasks/delivered_queues", grace=self._grace)]

    async def overdue(self, queue: str, limit: int) -> Sequence[TaskRef]:
        """Return overdue delivered tasks: the queue has probably lost them. Marks them as enqueued now."""
        async with self._pool.connection() as conn:
            rows = await query(conn, "tasks/overdue", queue=queue, limit=limit, grace=self._grace)
        # UPDATE ... RETURNING keeps no order.
        return sorted((TaskRef(*row) for row in rows), key=lambda ref: ref.priority)

    # --- running ---

    async def claim(
        self, id: UUID, task_type: str, lease: timedelta, limits: Limit
    ) -> ClaimedTask | PutOff | None:
        """Claim a due, unclaimed, unfinished task and count the attempt; None if it is not one.

        Returns PutOff, and records it, when a limit does not let the task start.
        """
        since = time.monotonic()
        async with self._pool.connection() as conn:
            if not limits:
                return await _claim(conn, id, lease, since)
            async with conn.transaction():
                if not (rows := await query(conn, "tasks/lock", id=id)):
                    return None
                [(key, waits_for)] = rows
                rate = rate_of_key(task_type, key) if limits.per_key else task_type
                # The word in rows for a promised slot.
                promised = waits_for == "turn"
                held = await self._held(conn, key, limits) or await turn(
                    conn, rate, limits.interval, promised=promised
                )
                if held is not None:
                    if limits.until is not None:
                        left = max(timedelta(milliseconds=1), limits.until - datetime.now(UTC))
                        held = PutOff(min(held.delay, left), held.waits_for)
                    await _put_off(conn, id, held)
                    return held
                claimed = await _claim(conn, id, lease, since)
                if claimed is not None and limits.interval is not None:
                    await begin(conn, rate, limits.interval, per_key=limits.per_key)
                return claimed

    async def _held(self, conn: Connection, key: str | None, limits: Limit) -> PutOff | None:
        """Return PutOff if too many tasks of ``key`` run. Holds the lock of the key until the claim commits."""
        if key is None or limits.concurrency is None:
            return None
        await conn.execute(statement("tasks/lock_concurrency"), {"key": key})
        [(count,)] = await query(conn, "tasks/running", key=key)
        return PutOff(_FULL_WAIT, "room") if count >= limits.concurrency else None

    async def put_off(self, id: UUID, reason: PutOff) -> None:
        """Delay a task without counting an attempt, unless it is claimed."""
        async with self._pool.connection() as conn:
            await _put_off(conn, id, reason)

    async def renew(self, claim: ClaimedTask, lease: timedelta) -> bool:
        """Extend the claim to ``lease`` from now. False when it was lost."""
        return await self._settle("tasks/renew", claim, lease=lease)

    async def complete(self, claim: ClaimedTask) -> bool:
        """End the task. False when the claim was lost."""
        try:
            return await self._settle("tasks/settle", claim)
        except DivisionByZero:
            return False

    async def complete_all(self, claims: Sequence[ClaimedTask]) -> Sequence[ClaimedTask]:
        """End tasks; returns those whose claim was still ours."""
        async with self._pool.connection() as conn:
            done = {id for (id,) in await query(conn, "tasks/complete_many", **_ids_and_tokens(claims))}
        return [claim for claim in claims if claim.id in done or await self.complete(claim)]

    async def record_error(self, claim: ClaimedTask, verdict: Retry) -> bool:
        """Note the error, set the next attempt, release the claim. False when the claim was lost."""
        values = {"delay": verdict.delay, "uncounted": int(not verdict.counts), "note": note_of(verdict)}
        return await self._settle("tasks/record_error", claim, error=clean(verdict.error), **values)

    async def fail(self, claim: ClaimedTask, verdict: DeadLetter, correction: str | None = None) -> bool:
        """End the task as failed. False when the claim was lost. ``correction``: why that has failed too."""
        values = {"error": clean(verdict.reason), "note": note_of(verdict)}
        if correction is None:
            return await self._settle("tasks/fail", claim, **values)
        return await self._settle("tasks/fail_uncorrected+fail", claim, **values, correction=clean(correction))

    async def expire(self, claim: ClaimedTask) -> bool:
        """End a task that a claim has found stale. False when the claim was lost."""
        return await self._settle("tasks/expire", claim, error=EXPIRED)

    async def next_of_key(self, key: str) -> Sequence[TaskRef]:
        """Make the first waiting task of a key due now and return it; none or one.

        Waits while another transaction puts off a task of the key. Otherwise it would miss that task.
        """
        async with self._pool.connection() as conn, conn.transaction():
            await conn.execute(statement("tasks/lock_concurrency"), {"key": key})
            return [TaskRef(*row) for row in await query(conn, "tasks/next_of_key", key=key)]

    async def _settle(self, name: str, claim: ClaimedTask, **values: Any) -> bool:
        async with self._pool.connection() as conn:
            cursor = await conn.execute(statement(name), {"id": claim.id, "token": claim.token, **values})
            return cursor.rowcount == 1


def claim_command(id: UUID, lease: timedelta) -> Command:
    """Return the statement that claims a task of a type without limits. Its row is that of a `ClaimedTask`."""
    return "tasks/claim", {"id": id, "token": claim_token(), "lease": lease}


def fail_command(claim: ClaimedTask, verdict: DeadLetter) -> Command:
    """Return the statement that ends a task as failed in a function's transaction; see `PostgresTasks.fail`."""
    values = {"error": clean(verdict.reason), "note": note_of(verdict)}
    return "tasks/fail_once+fail", {"id": claim.id, "token": claim.token, **values}


def prefetch_command(id: UUID, others: Sequence[UUID], lease: timedelta) -> Command:
    """Return the statement that claims such a task together with those of ``others`` that never began."""
    ids = array.of_plain([id, *others])
    return "tasks/claim_many", {"ids": ids, "first": id, "token": claim_token(), "lease": lease}


def give_back_command(claims: Sequence[ClaimedTask]) -> Command:
    """Return the statement that undoes claims of tasks that never began, with the attempts they counted."""
    return "tasks/unclaim", _ids_and_tokens(claims)


def _ids_and_tokens(claims: Sequence[ClaimedTask]) -> dict[str, str]:
    return {
        "ids": array.of_plain(claim.id for claim in claims),
        "tokens": array.of_plain(claim.token for claim in claims),
    }


async def _claim(conn: Connection, id: UUID, lease: timedelta, since: float) -> ClaimedTask | None:
    name, parameters = claim_command(id, lease)
    rows = await query(conn, name, **parameters)
    return replace(ClaimedTask(*rows[0]), since=since) if rows else None


async def _put_off(conn: Connection, id: UUID, reason: PutOff) -> None:
    await conn.execute(
        statement("tasks/put_off"), {"id": id, "delay": reason.delay, "waits_for": reason.waits_for}
    )
