"""Room for a second version of every row in the inbox: a claim then stays on its page and writes no index."""

from __future__ import annotations

from alembic import op

revision = "0011_inbox_room"
down_revision = "0010_task_hints"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Only for new pages; nothing is rewritten. When a row is settled, which does write indexes, it takes the room
    # that its claim has left. So the table does not grow.
    op.execute("ALTER TABLE inbox_messages SET (fillfactor = 50)")


def downgrade() -> None:
    op.execute("ALTER TABLE inbox_messages SET (fillfactor = 80)")
