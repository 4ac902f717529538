"""The scheduler's tables: the lease, what is scheduled, and the runs of cron jobs (DESIGN §8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.rows import class_row

from relay.adapters.postgres.bounded import CELL, bounded
from relay.adapters.postgres.pool import Source, query
from relay.adapters.postgres.row_operations import audit
from relay.adapters.postgres.sql import statement
from relay.domain.disclosure import clean
from relay.domain.operators import Operator
from relay.domain.policies import KEEP
from relay.domain.schedule import (
    CLAIM,
    ClaimedRun,
    CronRun,
    Due,
    JobRecord,
    JobView,
    Lead,
    RunState,
    Schedule,
    WaitingRun,
    pause_refusal,
)

#: A run that nobody has claimed for this long is enqueued again: the queue may have lost it.
_PATIENCE: Final = timedelta(seconds=10)


class PostgresLease:
    """The lease of one context, as one scheduler sees it: ``holder``.

    All raise DatabaseUnreachable and SchemaMissing.
    """

    def __init__(self, source: Source, holder: UUID, who: str) -> None:
        self._source = source
        self._holder = {"holder": holder}
        self._who = who

    async def take(self, ttl: timedelta) -> Lead:
        """Take or renew the lease, for ``ttl`` from now."""
        async with self._source() as conn:
            rows = await query(conn, "schedule/take_lease", **self._holder, who=self._who, ttl=ttl)
        if not rows:
            # An operator has deleted the row that the migrations insert.
            return Lead(None, 0.0)
        [(term, remaining, names, times)] = rows
        return Lead(term, remaining or 0.0, dict(zip(names or (), times or (), strict=True)))

    async def release(self) -> None:
        """Give the lease up at once."""
        async with self._source() as conn:
            await conn.execute(statement("schedule/release_lease"), self._holder)

    async def open(self, job: str, due: Due, correlation_id: UUID) -> RunState | None:
        """Record that a job is due; None when it is recorded already or another scheduler leads."""
        parameters = {
            **self._holder,
            "job": job,
            "scheduled_for": due.scheduled_for,
            "missed": due.missed,
            "correlation_id": correlation_id,
        }
        async with self._source() as conn:
            rows = await query(conn, "schedule/open_run", **parameters)
        return RunState(rows[0][0]) if rows else None


class PostgresSchedule:
    """What is scheduled in a context, and its runs. All raise DatabaseUnreachable and SchemaMissing.

    ``lease``: how long the claim of a run holds without a renewal.
    """

    def __init__(self, source: Source, *, lease: timedelta = CLAIM) -> None:
        self._source = source
        self.lease = lease

    # --- the leader ---

    async def record(self, jobs: Sequence[JobRecord], *, all_of_them: bool = False) -> None:
        """Record jobs. With ``all_of_them``, remove all jobs that are not among them."""
        columns = {
            "names": [job.name for job in jobs],
            "schedules": [job.schedule for job in jobs],
            "lasts": [job.last_run_at for job in jobs],
            "nexts": [job.next_run_at for job in jobs],
            "errors": [None if job.error is None else clean(job.error) for job in jobs],
        }
        async with self._source() as conn:
            if all_of_them:
                await conn.execute(statement("schedule/remove_jobs"), {"names": columns["names"]})
            await conn.execute(statement("schedule/record_jobs"), columns)

    async def last_fired(self, jobs: Iterable[str]) -> Mapping[str, datetime]:
        """Return the time since when each of the cron jobs may be due."""
        return dict(await self._all("schedule/last_fired", names=list(jobs)))

    async def waiting(self) -> Sequence[WaitingRun]:
        """Return runs for the queue. A run is not returned again for ten seconds, unless it changes."""
        return [WaitingRun(*row) for row in await self._all("schedule/waiting_runs", patience=_PATIENCE)]

    async def answer(self, job: str, requested_at: datetime) -> None:
        """Record that an operator's request is done."""
        await self._do("schedule/answer_request", name=job, requested_at=requested_at)

    # --- the worker ---

    async def claim(self, run: WaitingRun, token: UUID, who: str) -> ClaimedRun | None:
        """Claim a run; None when it is over, claimed by another, or an earlier run of its job is running."""
        parameters = {**_key(run), "token": token, "who": who, "lease": self.lease}
        try:
            rows = await self._all("schedule/claim_run", **parameters)
        except UniqueViolation:
            return None
        if not rows:
            return None
        [(correlation_id, attempt)] = rows
        return ClaimedRun(run.job, run.scheduled_for, correlation_id, attempt, token)

    async def renew(self, run: ClaimedRun) -> bool:
        """Extend the claim. False when it was lost."""
        return await self._do("schedule/renew_run", **_key(run), token=run.token, lease=self.lease) > 0

    async def settle(
        self,
        run: ClaimedRun,
        state: RunState,
        error: str | None = None,
        delay: timedelta = timedelta(),
        *,
        counts: bool = True,
    ) -> None:
        """Record how an attempt ended. Does nothing if the claim was lost."""
        error = None if error is None else clean(error)
        ended = {"state": state.value, "error": error, "delay": delay, "uncounted": int(not counts)}
        await self._do("schedule/settle_run", **_key(run), token=run.token, **ended)

    async def prune(self, rows: int = 5_000) -> None:
        """Delete what is older than 30 days: processed events, runs, alerts, removed jobs. ``rows``: at a time."""
        for name in ("inbox/prune_processed", "schedule/prune_runs", "alerts/prune"):
            while await self._do(name, keep=KEEP, limit=rows) == rows:
                pass
        await self._do("schedule/prune_jobs", keep=KEEP)

    # --- the operator ---

    async def schedule(self, limit: int = 10_000, offset: int = 0) -> Schedule:
        """Return what is scheduled, in the order of the names, and the leader."""
        which = {"limit": limit, "offset": offset}
        async with self._source() as conn, conn.cursor(row_factory=class_row(JobView)) as cursor:
            await cursor.execute(await bounded(conn, "schedule/jobs", which, CELL), which)
            jobs = tuple(await cursor.fetchall())
            leader = await (await conn.execute(statement("schedule/lease_holder"))).fetchone()
        return Schedule(leader[0] if leader else None, jobs)

    async def runs(self, job: str, limit: int = 20) -> Sequence[CronRun]:
        """Return the last runs of a cron job, the newest first."""
        return await self._runs("schedule/runs", {"job": job, "limit": limit})

    async def answering(self, job: str, asked: datetime) -> CronRun | None:
        """Return the run that answers what was due, or asked for, at a time; None while there is none.

        It may be another run of that time: one that had not started yet, or one that was due at once after.
        """
        return next(iter(await self._runs("schedule/answering_run", {"job": job, "asked": asked})), None)

    async def _runs(self, name: str, which: dict[str, Any]) -> Sequence[CronRun]:
        async with self._source() as conn, conn.cursor(row_factory=class_row(CronRun)) as cursor:
            await cursor.execute(await bounded(conn, name, which, CELL), which)
            return await cursor.fetchall()

    async def knows(self, job: str) -> bool:
        """Whether a job is scheduled, or was within the last month."""
        return bool(await self._all("schedule/known", name=job))

    async def request(self, job: str, by: Operator) -> datetime | None:
        """Ask the leader to run a job now; returns the time of the first request, None for an unknown job."""
        async with self._source() as conn, conn.transaction():
            rows = await query(conn, "schedule/request_job", name=job)
            if rows:
                await audit(conn, "schedule run", [job], by)
        return rows[0][0] if rows else None

    async def pause(self, job: str, by: Operator, *, pause: bool = True) -> bool:
        """Pause a cron job, or let it go on; False for an unknown job. Repeatable.

        Raises NotPausable for a duty of the relay.
        """
        async with self._source() as conn, conn.transaction():
            rows = await query(conn, "schedule/lock_job", name=job)
            if not rows:
                return False
            [(schedule, paused)] = rows
            if pause and (refusal := pause_refusal(schedule)) is not None:
                raise refusal
            if paused != pause:
                await conn.execute(statement("schedule/pause_job"), {"name": job, "pause": pause})
                await audit(conn, f"schedule {'pause' if pause else 'resume'}", [job], by)
        return True

    async def _all(self, name: str, /, **parameters: Any) -> list[Any]:
        async with self._source() as conn:
            return await query(conn, name, **parameters)

    async def _do(self, name: str, /, **parameters: Any) -> int:
        async with self._source() as conn:
            return (await conn.execute(statement(name), parameters)).rowcount


def _key(run: WaitingRun | ClaimedRun) -> dict[str, Any]:
    return {"job": run.job, "scheduled_for": run.scheduled_for}
