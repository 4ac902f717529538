"""The scheduler's tables: the lease, what is scheduled, and the runs of cron jobs (DESIGN §8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.rows import class_row

from relay.adapters.postgres.audit import Audit
from relay.adapters.postgres.inbox import clean
from relay.adapters.postgres.source import Source
from relay.adapters.postgres.sql import statement
from relay.commands.operate import Operator
from relay.domain.policies import KEEP
from relay.domain.schedule import CLAIM, ClaimedRun, Due, JobRecord, JobView, Lead, RunState, Schedule, WaitingRun

#: After this long a run that nobody took up is enqueued again: the queue may have lost it.
_PATIENCE: Final = timedelta(seconds=10)
_BITE: Final = 5_000


class PostgresLease:
    """The lead of one context as one scheduler, ``holder``, sees it.

    All raise DatabaseUnreachable and SchemaMissing.
    """

    def __init__(self, source: Source, holder: UUID, who: str) -> None:
        self._source = source
        self._holder = {"holder": holder}
        self._who = who

    async def take(self, ttl: timedelta) -> Lead:
        """Take the lead or keep it, for ``ttl`` from now."""
        async with self._source() as conn:
            cursor = await conn.execute(statement("take_lease"), {**self._holder, "who": self._who, "ttl": ttl})
            row = await cursor.fetchone()
        if row is None:
            # Somebody deleted the row; migrations put it there.
            return Lead(None, 0.0)
        term, remaining, names, times = row
        return Lead(term, remaining or 0.0, dict(zip(names or (), times or (), strict=True)))

    async def release(self) -> None:
        """Give it up at once."""
        async with self._source() as conn:
            await conn.execute(statement("release_lease"), self._holder)

    async def open(self, job: str, due: Due, correlation_id: UUID) -> RunState | None:
        """Record that a job is due; None when that is known already or the lead is another's."""
        parameters = {
            **self._holder,
            "job": job,
            "scheduled_for": due.scheduled_for,
            "missed": due.missed,
            "correlation_id": correlation_id,
        }
        async with self._source() as conn:
            row = await (await conn.execute(statement("open_run"), parameters)).fetchone()
        return None if row is None else RunState(row[0])


class PostgresSchedule:
    """What is scheduled in a context, and its runs. All raise DatabaseUnreachable and SchemaMissing."""

    def __init__(self, source: Source) -> None:
        self._source = source

    # --- the leader ---

    async def record(self, jobs: Sequence[JobRecord], *, all_of_them: bool = False) -> None:
        """Tell of jobs; ``all_of_them``: what is not among them is not scheduled any more."""
        columns = {
            "names": [job.name for job in jobs],
            "schedules": [job.schedule for job in jobs],
            "lasts": [job.last_run_at for job in jobs],
            "nexts": [job.next_run_at for job in jobs],
            "errors": [None if job.error is None else clean(job.error) for job in jobs],
        }
        async with self._source() as conn, conn.transaction():
            if all_of_them:
                await conn.execute(statement("remove_jobs"), {"names": columns["names"]})
            await conn.execute(statement("record_jobs"), columns)

    async def last_fired(self, jobs: Iterable[str]) -> Mapping[str, datetime]:
        """Since when each of the cron jobs may be due."""
        return dict(await self._all("last_fired", names=list(jobs)))

    async def waiting(self) -> Sequence[WaitingRun]:
        """Runs for the queue. They do not come again for ten seconds, unless they change."""
        return [WaitingRun(*row) for row in await self._all("waiting_runs", patience=_PATIENCE)]

    async def answer(self, job: str, requested_at: datetime) -> None:
        """An operator's request is dealt with."""
        await self._do("answer_request", name=job, requested_at=requested_at)

    # --- the worker ---

    async def claim(self, run: WaitingRun, token: UUID, who: str) -> ClaimedRun | None:
        """Take up a run; None when it is over, another's, or an earlier one of its job is under way."""
        parameters = {**_key(run), "token": token, "who": who, "lease": CLAIM}
        try:
            rows = await self._all("claim_run", **parameters)
        except UniqueViolation:
            return None
        claimed = (ClaimedRun(run.job, run.scheduled_for, id, attempt, token) for id, attempt in rows)
        return next(claimed, None)

    async def renew(self, run: ClaimedRun) -> bool:
        """Keep the claim. False when it was lost."""
        return await self._do("renew_run", **_key(run), token=run.token, lease=CLAIM) > 0

    async def settle(
        self, run: ClaimedRun, state: RunState, error: str | None = None, delay: timedelta = timedelta()
    ) -> None:
        """Record how an attempt ended. Does nothing once the claim is another's."""
        error = None if error is None else clean(error)
        await self._do("settle_run", **_key(run), token=run.token, state=state.value, error=error, delay=delay)

    async def prune(self) -> None:
        """Forget what is older than 30 days: processed events, runs, jobs that are gone."""
        for name in ("prune_processed", "prune_runs"):
            while await self._do(name, keep=KEEP, limit=_BITE) == _BITE:
                pass
        await self._do("prune_jobs", keep=KEEP)

    # --- the operator ---

    async def schedule(self) -> Schedule:
        """Everything that is scheduled, and who leads."""
        async with self._source() as conn, conn.cursor(row_factory=class_row(JobView)) as cursor:
            await cursor.execute(statement("scheduled_jobs"))
            jobs = tuple(await cursor.fetchall())
            leader = await (await conn.execute(statement("lease_holder"))).fetchone()
        return Schedule(leader[0] if leader else None, jobs)

    async def request(self, job: str, by: Operator) -> datetime | None:
        """Ask the leader to run a job now; returns since when that is asked, None for an unknown job."""
        async with self._source() as conn, conn.transaction():
            row = await (await conn.execute(statement("request_job"), {"name": job})).fetchone()
            if row is None:
                return None
            await Audit(conn).audit("schedule run", [job], by)
        requested_at: datetime = row[0]
        return requested_at

    async def outcome(self, job: str, scheduled_for: datetime) -> tuple[RunState, str | None] | None:
        """What became of a cron job's run; None when there is none."""
        rows = await self._all("scheduled_run", job=job, scheduled_for=scheduled_for)
        return next(((RunState(state), error) for state, error in rows), None)

    async def _all(self, name: str, /, **parameters: Any) -> list[Any]:
        async with self._source() as conn:
            return await (await conn.execute(statement(name), parameters)).fetchall()

    async def _do(self, name: str, /, **parameters: Any) -> int:
        async with self._source() as conn:
            return (await conn.execute(statement(name), parameters)).rowcount


def _key(run: WaitingRun | ClaimedRun) -> dict[str, Any]:
    return {"job": run.job, "scheduled_for": run.scheduled_for}
