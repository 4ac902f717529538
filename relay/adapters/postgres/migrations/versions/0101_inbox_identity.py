"""A message is known by its subscription and its id, in the inbox and in the archive.

Rows of before have no ``source_id``: their key is their id. Archived ones name no subscription: all know these.
"""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand, of_file

revision = "0101_inbox_identity"
down_revision = "0100_baseline"
branch_labels = None
depends_on = None

#: The columns are NULL in every row there is, so no table is rewritten. The indexes hold only rows apart.
BEFOREHAND = (
    "ALTER TABLE inbox_messages ADD COLUMN IF NOT EXISTS source_id UUID",
    "ALTER TABLE archived_messages ADD COLUMN IF NOT EXISTS subscription TEXT",
    "ALTER TABLE archived_messages ADD COLUMN IF NOT EXISTS source_id UUID",
    """
    CREATE INDEX IF NOT EXISTS idx_inbox_source ON inbox_messages (source_id, subscription)
      WHERE source_id IS NOT NULL
    """,
    """
    CREATE INDEX IF NOT EXISTS idx_archived_source ON archived_messages (source_id, subscription)
      WHERE source_id IS NOT NULL
    """,
)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    for statement in of_file("inbox_identity"):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would handle messages again: restore a backup instead")
