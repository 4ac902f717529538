"""The values of the scheduler, and the decision whether a job is due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, Protocol
from uuid import UUID

from relay.domain.errors import RelayError

#: How far to look back first. This is enough for a job that fires often; a rare job needs the whole grace.
_LOOKS: Final = (timedelta(minutes=1), timedelta(hours=1))


#: The schedule of a duty of the relay begins with this. The schedule of a cron job is its expression.
EVERY: Final = "every "


class InvalidSchedule(RelayError, ValueError):
    """A cron job cannot be scheduled as declared."""

    code = "INVALID_SCHEDULE"


class UnknownJob(RelayError, LookupError):
    """No scheduled job has this name."""

    code = "UNKNOWN_JOB"

    __str__ = RelayError.__str__


class NotPausable(RelayError):
    """The job is a duty of the relay: without it messages would wait for ever."""

    code = "NOT_PAUSABLE"


def pause_refusal(schedule: str) -> RelayError | None:
    """Why a job must not be paused; None for a cron job of the application. ``schedule``: as it is recorded."""
    if not schedule.startswith(EVERY):
        return None
    return NotPausable(
        "is a duty of the relay: without it messages would wait for ever", hint="pause cron jobs only"
    )


class RunState(Enum):
    """The state of a run of a cron job.

    WAITING: for a worker, the first time or after a failed attempt. STARTED. FINISHED. FAILED: the command
    refused, or every attempt failed. SKIPPED: the run before it had not started yet and counts for both.
    MISSED: no scheduler ran for longer than the job's grace.
    """

    WAITING = "waiting"
    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"
    SKIPPED = "skipped"
    MISSED = "missed"


class Trigger(Protocol):
    """When a job fires."""

    def after(self, time: datetime) -> datetime | None:
        """The first time after ``time``; None when there is none."""


@dataclass(frozen=True, slots=True)
class Due:
    """A job should run for ``scheduled_for``. ``missed``: it is too late for that run."""

    scheduled_for: datetime
    missed: bool = False


def due(trigger: Trigger, since: datetime, now: datetime, grace: timedelta) -> Due | None:
    """Decide whether a job that last fired at ``since`` is due.

    One run makes up for all missed runs: the latest, unless that is longer ago than ``grace``.
    """
    for look in (*(look for look in _LOOKS if look < grace), grace):
        latest, time = None, trigger.after(max(since, now - look))
        while time is not None and time <= now:
            latest, time = time, trigger.after(time)
        if latest is not None:
            return Due(latest)
    first = trigger.after(since)
    return Due(first, missed=True) if first is not None and first <= now else None


@dataclass(frozen=True, slots=True)
class Lead:
    """The lease as a scheduler found it.

    ``term``: set if the lease is ours. ``remaining``: otherwise, how long another scheduler holds it, in seconds.
    ``requested``: jobs that an operator wants to run now, and when they were requested.
    """

    term: int | None
    remaining: float
    requested: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What a leader reports about a job. ``error`` is the error of the last run; None if it succeeded."""

    name: str
    schedule: str
    last_run_at: datetime | None = None
    next_run_at: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run that no worker has claimed yet."""

    job: str
    scheduled_for: datetime


#: How long a worker holds a run without a renewal.
CLAIM: Final = timedelta(seconds=8)


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run that is ours as long as the claim is renewed. ``attempt`` counts from 1."""

    job: str
    scheduled_for: datetime
    correlation_id: UUID
    attempt: int
    token: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A scheduled job as an operator sees it. ``outcome`` is the state of a cron job's last run.

    ``paused_at``: since when an operator has paused it; it then has no next run.
    """

    name: str
    schedule: str
    last_run_at: datetime | None
    outcome: str | None
    error: str | None
    next_run_at: datetime | None
    requested_at: datetime | None
    paused_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CronRun:
    """One run of a cron job. ``correlation_id`` finds its life. ``who``: host and process of its worker."""

    job: str
    scheduled_for: datetime
    state: str
    opened_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempts: int
    error: str | None
    who: str | None
    correlation_id: str

    @property
    def seconds(self) -> float | None:
        """How long it took, if it has begun and ended."""
        ended = self.started_at is not None and self.finished_at is not None
        return (self.finished_at - self.started_at).total_seconds() if ended else None  # type: ignore[operator]


def how_it_went(job: JobView, run: CronRun | None, asked: datetime) -> tuple[RunState, str | None] | None:
    """How the run went that was asked for at a time, with its error; None while it has not begun.

    ``run``: the one that answers. A duty of the relay leaves no runs: its last time is in ``job``.
    """
    if run is not None:
        return RunState(run.state), run.error
    if not job.schedule.startswith(EVERY) or job.requested_at is not None:
        return None
    if job.last_run_at is None or job.last_run_at < asked:
        return None
    return RunState.FAILED if job.error else RunState.FINISHED, job.error


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that is scheduled in a context; ``leader`` is None while no scheduler leads it."""

    leader: str | None
    jobs: tuple[JobView, ...]
