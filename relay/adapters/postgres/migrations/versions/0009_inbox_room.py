"""Room for a second version of every row in the inbox: a claim then stays on its page and writes no index."""

from __future__ import annotations

from alembic import op

revision = "0009_inbox_room"
down_revision = "0008_archive"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # For pages to come; nothing is rewritten. The end of a row, which does write indexes, takes the room
    # that its claim has left, so that the table does not grow by it.
    op.execute("ALTER TABLE inbox_messages SET (fillfactor = 50)")


def downgrade() -> None:
    op.execute("ALTER TABLE inbox_messages SET (fillfactor = 80)")
