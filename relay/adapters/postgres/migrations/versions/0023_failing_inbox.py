"""An index that finds messages which failed and are tried again, however many others wait."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0023_failing_inbox"
down_revision = "0022_event_id"
branch_labels = None
depends_on = None

# Partial: a message costs an entry when it fails, none when it comes or is processed.
BEFOREHAND = (
    """
    CREATE INDEX IF NOT EXISTS idx_inbox_failing ON inbox_messages (received_at)
      WHERE num_nonnulls(last_error, dead_letter_reason) > 0 AND processed_at IS NULL AND dead_lettered_at IS NULL
    """,
)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)


def downgrade() -> None:
    op.execute("DROP INDEX idx_inbox_failing")
