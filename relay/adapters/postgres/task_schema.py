"""The tables of background tasks as SQLAlchemy sees them; see `relay.adapters.postgres.schema`."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP


def task_tables(metadata: MetaData) -> tuple[Table, Table]:
    """Make task_outbox and task_rates in ``metadata``."""
    time, now = TIMESTAMP(timezone=True), text("now()")
    outbox = Table(
        "task_outbox",
        metadata,
        Column("id", Uuid, primary_key=True),
        Column("type", Text, nullable=False),
        Column("payload", JSONB, nullable=False),
        Column("queue", Text, nullable=False, server_default=text("'default'")),
        Column("priority", Integer, nullable=False, server_default=text("50")),
        Column("status", Text, nullable=False, server_default=text("'pending'")),
        Column("created_at", time, nullable=False, server_default=now),
        Column("available_at", time),
        Column("correlation_id", Uuid),
        Column("causation_id", Uuid),
        Column("metadata", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
        Column("concurrency_key", Text),
        Column("seq", BigInteger, Identity(always=False), nullable=False),
        Column("attempts", Integer, nullable=False, server_default=text("0")),
        Column("last_error", Text),
        Column("delivered_at", time),
        Column("enqueued_at", time),
        Column("next_attempt_at", time),
        Column("waits_for", Text),
        Column("started_at", time),
        Column("claim_token", Uuid),
        Column("claimed_until", time),
        Column("finished_at", time),
        CheckConstraint(
            "status IN ('pending', 'delivered', 'completed', 'failed', 'cancelled')", name="chk_task_status"
        ),
        CheckConstraint("waits_for IN ('turn', 'room', 'handler')", name="chk_task_waits_for"),
    )
    _indexes(outbox)
    rates = Table(
        "task_rates",
        metadata,
        Column("type", Text, primary_key=True),
        Column("free_at", time, nullable=False, server_default=now),
        Column("promised_until", time, nullable=False, server_default=now),
    )
    return outbox, rates


def _indexes(outbox: Table) -> None:
    task = outbox.c
    pending = task.status == text("'pending'")
    Index(
        *("idx_task_ready", task.queue, task.priority, task.seq),
        postgresql_where=pending & task.available_at.is_(None),
    )
    Index(
        *("idx_task_due", task.queue, task.available_at),
        postgresql_where=pending & task.available_at.is_not(None),
    )
    Index("idx_task_sweep", task.queue, task.enqueued_at, postgresql_where=task.status == text("'delivered'"))
    Index("idx_task_running", task.concurrency_key, postgresql_where=task.claim_token.is_not(None))
    Index(
        *("idx_task_waiting", task.concurrency_key, task.priority, task.seq),
        postgresql_where=task.waits_for == text("'room'"),
    )
    Index("idx_task_failed", task.seq, postgresql_where=task.status == text("'failed'"))
    Index("idx_task_correlation", task.correlation_id)
