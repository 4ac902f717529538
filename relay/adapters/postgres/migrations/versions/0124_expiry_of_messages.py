"""Messages may say until when they are worth handling."""

from __future__ import annotations

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0124_expiry_of_messages"
down_revision = "0123_expiry_of_events"
branch_labels = None
depends_on = None

# The index is empty until a message expires: a row costs an entry then, none before.
BEFOREHAND = (
    "ALTER TABLE inbox_messages ADD COLUMN IF NOT EXISTS expires_at TIMESTAMPTZ",
    """
    CREATE INDEX IF NOT EXISTS idx_inbox_expired ON inbox_messages (processed_at)
      WHERE processed_at IS NOT NULL AND dead_letter_class = 'expired'
    """,
)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)


def downgrade() -> None:
    raise NotImplementedError("going back would handle what is stale: restore a backup instead")
