"""The scheduler's tables as SQLAlchemy sees them. As for those of `schema`, the migrations define them."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import TIMESTAMP

_TIME: Final = TIMESTAMP(timezone=True)
_ZERO: Final = text("0")
_NOW: Final = text("now()")


def add_scheduler_tables(metadata: MetaData) -> tuple[Table, Table, Table]:
    """Add and return the lease, one row; what is scheduled; and the runs of cron jobs."""
    scheduler_lease = Table(
        "scheduler_lease",
        metadata,
        Column("id", Boolean, CheckConstraint("id"), primary_key=True, server_default=text("true")),
        Column("holder", Uuid),
        Column("who", Text),
        Column("term", BigInteger, nullable=False, server_default=_ZERO),
        Column("acquired_at", _TIME),
        Column("expires_at", _TIME),
    )

    scheduled_jobs = Table(
        "scheduled_jobs",
        metadata,
        Column("name", Text, primary_key=True),
        Column("schedule", Text, nullable=False),
        Column("registered_at", _TIME, nullable=False, server_default=_NOW),
        Column("last_run_at", _TIME),
        Column("next_run_at", _TIME),
        Column("error", Text),
        Column("requested_at", _TIME),
        Column("removed_at", _TIME),
    )

    scheduled_runs = Table(
        "scheduled_runs",
        metadata,
        Column("id", BigInteger, Identity(always=False), primary_key=True),
        Column("job", Text, nullable=False),
        Column("scheduled_for", _TIME, nullable=False),
        Column("state", Text, nullable=False, server_default=text("'waiting'")),
        Column("correlation_id", Uuid, nullable=False),
        Column("opened_at", _TIME, nullable=False, server_default=_NOW),
        Column("enqueued_at", _TIME),
        Column("available_at", _TIME),
        Column("attempts", Integer, nullable=False, server_default=_ZERO),
        Column("who", Text),
        Column("started_at", _TIME),
        Column("finished_at", _TIME),
        Column("error", Text),
        Column("claim_token", Uuid),
        Column("claimed_until", _TIME),
        UniqueConstraint("job", "scheduled_for", name="uq_scheduled_runs"),
        CheckConstraint(
            "state IN ('waiting', 'started', 'finished', 'failed', 'skipped', 'missed')",
            name="chk_scheduled_runs_state",
        ),
    )

    run = scheduled_runs.c
    Index("uq_scheduled_runs_started", run.job, unique=True, postgresql_where=run.state == text("'started'"))
    Index(
        "idx_scheduled_runs_open",
        run.opened_at,
        postgresql_where=text("state IN ('waiting', 'started')"),
    )
    Index("idx_scheduled_runs_age", run.opened_at)
    Index("idx_scheduled_runs_correlation", run.correlation_id)
    return scheduler_lease, scheduled_jobs, scheduled_runs
