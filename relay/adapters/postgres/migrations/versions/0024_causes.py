"""Indexes that find what a message has caused: the life of one whose chain has no correlation."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0024_causes"
down_revision = "0023_failing_inbox"
branch_labels = None
depends_on = None

# Partial: an event that nothing has caused costs no entry.
BEFOREHAND = (
    """
    CREATE INDEX IF NOT EXISTS idx_outbox_causation ON outbox_events (causation_id)
      WHERE causation_id IS NOT NULL
    """,
    """
    CREATE INDEX IF NOT EXISTS idx_task_causation ON task_outbox (causation_id)
      WHERE causation_id IS NOT NULL
    """,
)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)


def downgrade() -> None:
    op.execute("DROP INDEX idx_outbox_causation")
    op.execute("DROP INDEX idx_task_causation")
