"""Ids of archived messages, so that the inbox still recognises them; and deleted batches (MicroDAO §17)."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0019_archived_ids"
down_revision = "0018_schemas"
branch_labels = None
depends_on = None

# archived_messages: 75 bytes for a message, with its index, where its row had about 900. Rows are written once.
# deleted_at: no process may use the batch any more. gone_at: its files are deleted, too.
BEFOREHAND = (
    """
    CREATE TABLE IF NOT EXISTS archived_messages (
      message_id UUID PRIMARY KEY,
      batch BIGINT NOT NULL
    )
    """,
    """
    ALTER TABLE archive_batches
      ADD COLUMN IF NOT EXISTS deleted_at TIMESTAMPTZ,
      ADD COLUMN IF NOT EXISTS gone_at TIMESTAMPTZ
    """,
)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)


def downgrade() -> None:
    op.execute("DROP TABLE archived_messages")
    op.execute("ALTER TABLE archive_batches DROP COLUMN deleted_at, DROP COLUMN gone_at")
