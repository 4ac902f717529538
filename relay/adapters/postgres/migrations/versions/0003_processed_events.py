"""Processed events (DESIGN §4), and the index by which the PubAck ledger is compared with the stream (§9)."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0003_processed_events"
down_revision = "0002_dead_letters"
branch_labels = None
depends_on = None

PROCESSED_EVENTS = """
CREATE TABLE processed_events (
  handler TEXT NOT NULL,
  message_id UUID NOT NULL,
  processed_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),

  PRIMARY KEY (handler, message_id)
)
"""

AGE = "CREATE INDEX idx_processed_events_age ON processed_events (processed_at)"

# Partial: an event costs an entry when it is published, none when it is written.
LEDGER = """
CREATE INDEX IF NOT EXISTS idx_outbox_ledger ON outbox_events (published_stream, published_seq)
  WHERE published_seq IS NOT NULL
"""

BEFOREHAND = (LEDGER,)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    for statement in (PROCESSED_EVENTS, AGE):
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP INDEX idx_outbox_ledger")
    op.execute("DROP TABLE processed_events")
