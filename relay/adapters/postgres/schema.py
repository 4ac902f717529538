"""The tables of a context's database (SDS-047 §9, extended by DESIGN §4) as SQLAlchemy sees them.

For reads, for Alembic's comparison and for applications that want the tables in their own metadata. The migrations
define the tables: only they make the triggers, the storage parameters and the wake-up row.
"""

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
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TIMESTAMP

from relay.adapters.postgres.archive_schema import archive_table
from relay.adapters.postgres.processed import processed_events_table
from relay.adapters.postgres.scheduler_tables import add_scheduler_tables
from relay.adapters.postgres.task_schema import task_tables

metadata: Final = MetaData()

_TIME: Final = TIMESTAMP(timezone=True)
_ZERO: Final = text("0")
_NOW: Final = text("now()")
_EMPTY: Final = text("'{}'::jsonb")

#: Events written in an application's transaction, published or not (OutboxEvent, §2.1).
outbox_events: Final = Table(
    "outbox_events",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("aggregate_type", Text, nullable=False),
    Column("aggregate_id", Text, nullable=False),
    Column("event_type", Text, nullable=False),
    Column("event_version", Integer, nullable=False, server_default=text("1")),
    Column("payload", JSONB, nullable=False),
    Column("occurred_at", _TIME, nullable=False, server_default=_NOW),
    Column("correlation_id", Uuid),
    Column("causation_id", Uuid),
    Column("published_at", _TIME),
    Column("publish_attempts", Integer, nullable=False, server_default=_ZERO),
    Column("publish_error", Text),
    Column("seq", BigInteger, Identity(always=False), nullable=False),
    Column("partition_key", Text, nullable=False),
    Column("topic", Text),
    Column("headers", JSONB, nullable=False, server_default=_EMPTY),
    Column("available_at", _TIME),
    Column("dead_at", _TIME),
    Column("published_stream", Text),
    Column("published_seq", BigInteger),
    Column("published_duplicate", Boolean),
    Column("generation", Integer, nullable=False, server_default=_ZERO),
    # chk_occurred_not_future is a constraint trigger, because it checks new rows only.
)

_outbox: Final = outbox_events.c
_live: Final = _outbox.published_at.is_(None) & _outbox.dead_at.is_(None)
Index("idx_outbox_unpublished", _outbox.occurred_at, postgresql_where=_outbox.published_at.is_(None))
Index("idx_outbox_correlation", _outbox.correlation_id)
# What the function relay_lane says. Indexes hold the expression itself: the planner compares that.
_lane: Final = text("(CASE WHEN partition_key = '' THEN -1 ELSE hashtext(partition_key) & 63 END)")
Index(
    "idx_outbox_ready",
    _lane,
    _outbox.seq,
    func.hashtextextended(_outbox.partition_key, _ZERO),
    postgresql_where=_live & _outbox.available_at.is_(None),
)
Index("idx_outbox_due", _outbox.available_at, postgresql_where=_live & _outbox.available_at.is_not(None))
_failed: Final = _outbox.published_at.is_(None) & (_outbox.publish_attempts > _ZERO)
Index("idx_outbox_failed", func.hashtext(_outbox.partition_key), _outbox.seq, postgresql_where=_failed)
Index(
    "idx_outbox_heads",
    text("(CASE WHEN dead_at IS NULL THEN 0 ELSE 1 END)"),
    _lane,
    _outbox.seq,
    postgresql_where=_failed,
)
Index(
    "idx_outbox_dead",
    _outbox.dead_at,
    postgresql_where=_outbox.dead_at.is_not(None) & _outbox.published_at.is_(None),
)

Index(
    "idx_outbox_ledger",
    _outbox.published_stream,
    _outbox.published_seq,
    postgresql_where=_outbox.published_seq.is_not(None),
)

#: Messages received from a stream, each handled once in effect (InboxMessage, §2.1).
inbox_messages: Final = Table(
    "inbox_messages",
    metadata,
    Column("message_id", Uuid, primary_key=True),
    Column("subject", Text, nullable=False),
    Column("received_at", _TIME, nullable=False, server_default=_NOW),
    Column("processed_at", _TIME),
    Column("attempts", Integer, nullable=False, server_default=_ZERO),
    Column("last_error", Text),
    Column("subscription", Text),
    Column("stream", Text),
    Column("stream_seq", BigInteger),
    Column("ack_subject", Text),
    Column("body", LargeBinary),
    Column("headers", JSONB, nullable=False, server_default=_EMPTY),
    Column("event_type", Text),
    Column("event_version", Integer),
    Column("occurred_at", _TIME),
    Column("partition_key", Text),
    Column("correlation_id", Uuid),
    Column("causation_id", Uuid),
    Column("next_attempt_at", _TIME),
    Column("enqueued_at", _TIME),
    Column("claim_token", Uuid),
    Column("claimed_until", _TIME),
    Column("dead_letter_reason", Text),
    Column("dead_letter_class", Text),
    Column("dead_lettered_at", _TIME),
    Column("requeues", Integer, nullable=False, server_default=_ZERO),
    Column("order_key", Text),
    Column("order_seq", BigInteger),
    Column("stepped_over", Boolean, nullable=False, server_default=text("false")),
    CheckConstraint(  # POL-047-004
        "processed_at IS NULL OR processed_at >= received_at", name="chk_inbox_processed_after_received"
    ),
)

_inbox: Final = inbox_messages.c
_open: Final = _inbox.processed_at.is_(None)
Index("idx_inbox_unprocessed", _inbox.received_at, postgresql_where=_open)
Index(
    "idx_inbox_sweep",
    _inbox.subscription,
    _inbox.enqueued_at,
    postgresql_where=_open & _inbox.dead_lettered_at.is_(None),
)
Index("idx_inbox_correlation", _inbox.correlation_id)
Index("idx_inbox_stream", _inbox.stream, _inbox.stream_seq)
Index(
    "idx_inbox_dead_lettered",
    _inbox.dead_lettered_at,
    postgresql_where=_inbox.dead_lettered_at.is_not(None),
)
Index(
    "idx_inbox_order",
    _inbox.subscription,
    _inbox.order_key,
    _inbox.order_seq,
    _inbox.message_id,
    postgresql_where=_inbox.order_key.is_not(None) & _open & ~_inbox.stepped_over,
)

#: The place up to which the inbox of an ordered subscription is known to be complete (DESIGN §6).
inbox_watermarks: Final = Table(
    "inbox_watermarks",
    metadata,
    Column("subscription", Text, primary_key=True),
    Column("stream", Text, primary_key=True),
    Column("consumer_seq", BigInteger),
    Column("stream_seq", BigInteger, nullable=False, server_default=_ZERO),
    Column("ahead", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
)

#: Keys that are parked behind a dead letter (DESIGN §6).
parked_keys: Final = Table(
    "parked_keys",
    metadata,
    Column("subscription", Text, primary_key=True),
    Column("order_key", Text, primary_key=True),
    Column("parked_at", _TIME, nullable=False, server_default=_NOW),
    Column("message_id", Uuid, nullable=False),
    Column("reason", Text, nullable=False),
)

#: One row: whether the publisher sleeps and wants a NOTIFY (DESIGN §5, Wake).
relay_wakeup: Final = Table(
    "relay_wakeup",
    metadata,
    Column("id", Boolean, CheckConstraint("id"), primary_key=True, server_default=text("true")),
    Column("sleeping", Boolean, nullable=False, server_default=text("false")),
)

#: Dead letters as incidents: one row for each time a message dies (DESIGN §7).
dead_letters: Final = Table(
    "dead_letters",
    metadata,
    Column("id", BigInteger, Identity(always=False), primary_key=True),
    Column("message_id", Uuid, nullable=False),
    Column("occurrence", Integer, nullable=False, server_default=text("1")),
    Column("recorded_at", _TIME, nullable=False, server_default=_NOW),
    Column("subscription", Text),
    Column("subject", Text, nullable=False),
    Column("stream", Text),
    Column("stream_seq", BigInteger),
    Column("event_type", Text),
    Column("correlation_id", Uuid),
    Column("causation_id", Uuid),
    Column("class", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=_ZERO),
    Column("headers", JSONB, nullable=False, server_default=_EMPTY),
    Column("original", LargeBinary),
    Column("letter_stream", Text),
    Column("letter_seq", BigInteger),
    Column("alerted_at", _TIME),
    Column("status", Text, nullable=False, server_default=text("'open'")),
    Column("closed_at", _TIME),
    Column("closed_by", Text),
    Column("note", Text),
    UniqueConstraint("message_id", "occurrence", name="uq_dead_letters_message"),
    CheckConstraint("class IN ('poison', 'deterministic', 'exhausted')", name="chk_dead_letters_class"),
    CheckConstraint("status IN ('open', 'requeued', 'discarded', 'resolved')", name="chk_dead_letters_status"),
)

_incident: Final = dead_letters.c
_unseen: Final = _incident.status == text("'open'")
Index("idx_dead_letters_open", _incident.recorded_at, postgresql_where=_unseen)
Index(
    "idx_dead_letters_unalerted",
    _incident.id,
    postgresql_where=_incident.alerted_at.is_(None) & _unseen,
)
Index(
    "idx_dead_letters_alerted",
    _incident.alerted_at,
    postgresql_where=_incident.alerted_at.is_not(None),
)
Index("idx_dead_letters_correlation", _incident.correlation_id)

#: What operators did to which rows, written in the same transaction as the action.
audit_log: Final = Table(
    "audit_log",
    metadata,
    Column("id", BigInteger, Identity(always=False), primary_key=True),
    Column("at", _TIME, nullable=False, server_default=_NOW),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("ids", ARRAY(Text), nullable=False),
    Column("note", Text),
)
Index("idx_audit_log_at", audit_log.c.at)

#: What handlers and tasks have finished, so that a repeat is recognised (DESIGN §4).
processed_events: Final = processed_events_table(metadata)

#: Background tasks, and the state of each type's rate limit (DESIGN §8).
task_outbox, task_rates = task_tables(metadata)

#: The lease, the schedule and the runs of cron jobs (DESIGN §8).
scheduler_lease, scheduled_jobs, scheduled_runs = add_scheduler_tables(metadata)

#: The batches of rows that have left their tables for cold storage (DESIGN §2).
archive_batches: Final = archive_table(metadata)
