"""Background tasks in task_outbox: delivered to a queue or taken by a worker, claimed, and ended.

Claims are leases on the database's clock, every later write is fenced by the claim's token. Limits are
decided in the transaction of the claim, so that they hold whatever becomes of Redis.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from relay.adapters.postgres import array
from relay.adapters.postgres.inbox import clean
from relay.adapters.postgres.pipeline import Command
from relay.adapters.postgres.pool import Connection, Pool, connection
from relay.adapters.postgres.sql import statement
from relay.domain.tasks import ClaimedTask, PutOff, Rate, TaskRef, turn

#: How long after a task should have begun the sweep takes it for lost.
GRACE: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a type's tasks are held to. ``interval``: the least time between two starts."""

    concurrency: int | None = None
    interval: timedelta | None = None

    def __bool__(self) -> bool:
        """Whether there is any."""
        return self.concurrency is not None or self.interval is not None


class PostgresTasks:
    """The tasks of one context.

    ``grace``: how long after a task should have begun the sweep takes it for lost. ``full_wait``: how soon a task
    that finds too many of its key running looks again by itself; as a rule the one that ends wakes it.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        grace: timedelta = GRACE,
        full_wait: timedelta = timedelta(seconds=8),
    ) -> None:
        self._pool = pool
        self._grace = grace
        self._full_wait = full_wait

    # --- on the way to a queue ---

    async def pending_queues(self) -> Sequence[str]:
        """The queues for which tasks are due. Raises DatabaseUnreachable, as all of these do."""
        async with connection(self._pool) as conn:
            cursor = await conn.execute(statement("pending_task_queues"))
            return [queue for (queue,) in await cursor.fetchall()]

    @asynccontextmanager
    async def deliver(self, queue: str, limit: int) -> AsyncIterator[Sequence[TaskRef]]:
        """Mark up to ``limit`` due tasks of a queue as delivered, which counts once the block has ended well.

        Others wait for these rows until then; an exception gives them back.
        """
        async with connection(self._pool) as conn, conn.transaction():
            cursor = await conn.execute(statement("claim_pending_tasks"), {"queue": queue, "limit": limit})
            rows = await cursor.fetchall()
            # UPDATE ... RETURNING keeps no order.
            yield [TaskRef(id, name, queue, priority) for priority, _, id, name, queue in sorted(rows)]

    async def overdue_queues(self) -> Sequence[str]:
        """The queues that by the age of their tasks have lost some."""
        async with connection(self._pool) as conn:
            cursor = await conn.execute(statement("delivered_task_queues"), {"grace": self._grace})
            return [queue for (queue,) in await cursor.fetchall()]

    async def overdue(self, queue: str, limit: int) -> Sequence[TaskRef]:
        """Tasks that should be in a queue and by their age are not; marks them as enqueued now."""
        parameters = {"queue": queue, "limit": limit, "grace": self._grace}
        async with connection(self._pool) as conn:
            cursor = await conn.execute(statement("overdue_tasks"), parameters)
            refs = [TaskRef(*row) for row in await cursor.fetchall()]
        # UPDATE ... RETURNING keeps no order.
        return sorted(refs, key=lambda ref: ref.priority)

    # --- running ---

    async def claim(
        self, id: UUID, task_type: str, lease: timedelta, limits: Limits
    ) -> ClaimedTask | PutOff | None:
        """Take a due, unclaimed, unfinished task and count the attempt; None if it is not.

        PutOff when a limit does not let it start, which is noted.
        """
        since = time.monotonic()
        async with connection(self._pool) as conn:
            if not limits:
                return await _claim(conn, id, lease, since)
            async with conn.transaction():
                cursor = await conn.execute(statement("lock_task"), {"id": id})
                if (row := await cursor.fetchone()) is None:
                    return None
                key, waits_for = row
                held = await self._held(conn, key, limits) or await _turn(conn, task_type, limits, waits_for)
                if held is not None:
                    await _put_off(conn, id, held)
                    return held
                claimed = await _claim(conn, id, lease, since)
                if claimed is not None and limits.interval is not None:
                    # Only now: the interval is one between starts.
                    await conn.execute(statement("take_turn"), {"type": task_type, "interval": limits.interval})
                return claimed

    async def _held(self, conn: Connection, key: str | None, limits: Limits) -> PutOff | None:
        """Whether too many tasks of ``key`` run. The lock on the key is held until the claim commits."""
        if key is None or limits.concurrency is None:
            return None
        await conn.execute(statement("lock_concurrency"), {"key": key})
        cursor = await conn.execute(statement("running_tasks"), {"key": key})
        row = await cursor.fetchone()
        return PutOff(self._full_wait, "room") if row and row[0] >= limits.concurrency else None

    async def put_off(self, id: UUID, reason: PutOff) -> None:
        """Have a task wait without an attempt, unless it is claimed."""
        async with connection(self._pool) as conn:
            await _put_off(conn, id, reason)

    async def renew(self, claim: ClaimedTask, lease: timedelta) -> bool:
        """Extend the claim to ``lease`` from now. False when it was lost."""
        return await self._settle("renew_task", claim, lease=lease)

    async def complete(self, claim: ClaimedTask) -> bool:
        """End the task. False when the claim was lost."""
        return await self._settle("complete_task", claim)

    async def complete_all(self, claims: Sequence[ClaimedTask]) -> Sequence[ClaimedTask]:
        """End tasks; returns those of which the claim was ours."""
        async with connection(self._pool) as conn:
            cursor = await conn.execute(statement("complete_tasks"), _ids_and_tokens(claims))
            done = {id for (id,) in await cursor.fetchall()}
        return [claim for claim in claims if claim.id in done or await self.complete(claim)]

    async def record_error(self, claim: ClaimedTask, error: str, delay: timedelta) -> bool:
        """Note the error, set the next attempt, release the claim. False when the claim was lost."""
        return await self._settle("record_task_error", claim, error=clean(error), delay=delay)

    async def fail(self, claim: ClaimedTask, error: str) -> bool:
        """End the task as failed. False when the claim was lost."""
        return await self._settle("fail_task", claim, error=clean(error))

    async def next_of_key(self, key: str) -> Sequence[TaskRef]:
        """The task that waits at the head of a key, due from now on; none or one.

        Waits for a task of the key that is just being put off, which would otherwise be missed.
        """
        async with connection(self._pool) as conn, conn.transaction():
            await conn.execute(statement("lock_concurrency"), {"key": key})
            cursor = await conn.execute(statement("next_task_of_key"), {"key": key})
            return [TaskRef(*row) for row in await cursor.fetchall()]

    async def _settle(self, name: str, claim: ClaimedTask, **values: Any) -> bool:
        async with connection(self._pool) as conn:
            cursor = await conn.execute(statement(name), {"id": claim.id, "token": claim.token, **values})
            return cursor.rowcount == 1


def claim_command(id: UUID, lease: timedelta) -> Command:
    """The statement that claims a task of a type without limits; its row is that of a `ClaimedTask`."""
    return "claim_task", {"id": id, "token": uuid4(), "lease": lease}


def claim_ahead_command(id: UUID, others: Sequence[UUID], lease: timedelta) -> Command:
    """The statement that claims such a task together with those of the others that never began."""
    ids = array.of_plain([id, *others])
    return "claim_tasks", {"ids": ids, "first": id, "token": uuid4(), "lease": lease}


def give_back_command(claims: Sequence[ClaimedTask]) -> Command:
    """The statement that undoes claims of tasks that had never begun, and the attempts that they have counted."""
    return "unclaim_tasks", _ids_and_tokens(claims)


def _ids_and_tokens(claims: Sequence[ClaimedTask]) -> dict[str, str]:
    return {
        "ids": array.of_plain(claim.id for claim in claims),
        "tokens": array.of_plain(claim.token for claim in claims),
    }


async def _claim(conn: Connection, id: UUID, lease: timedelta, since: float) -> ClaimedTask | None:
    name, parameters = claim_command(id, lease)
    row = await (await conn.execute(statement(name), parameters)).fetchone()
    return None if row is None else replace(ClaimedTask(*row), since=since)


async def _put_off(conn: Connection, id: UUID, reason: PutOff) -> None:
    await conn.execute(statement("put_off_task"), {"id": id, "delay": reason.delay, "waits_for": reason.waits_for})


async def _turn(conn: Connection, task_type: str, limits: Limits, waits_for: str | None) -> PutOff | None:
    """Hold the rate limit; where there is no turn now, have one promised."""
    if limits.interval is None:
        return None
    cursor = await conn.execute(statement("lock_rate"), {"type": task_type})
    row = await cursor.fetchone()
    assert row is not None  # an upsert returns its row
    promised = waits_for == "turn"
    delay = turn(Rate(*row), limits.interval, promised=promised)
    if delay <= timedelta(0):
        return None
    if not promised:
        await conn.execute(statement("promise_turn"), {"type": task_type, "delay": delay})
    return PutOff(delay, "turn")
