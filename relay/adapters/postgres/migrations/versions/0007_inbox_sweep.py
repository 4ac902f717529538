"""The sweep's index by subscription: one with little to do does not read past what waits for another."""

from __future__ import annotations

from alembic import op

revision = "0007_inbox_sweep"
down_revision = "0006_scheduler"
branch_labels = None
depends_on = None

DROP = "DROP INDEX idx_inbox_sweep"
OPEN = "WHERE processed_at IS NULL AND dead_lettered_at IS NULL"


def upgrade() -> None:
    op.execute(DROP)
    op.execute(f"CREATE INDEX idx_inbox_sweep ON inbox_messages (subscription, enqueued_at) {OPEN}")


def downgrade() -> None:
    op.execute(DROP)
    op.execute(f"CREATE INDEX idx_inbox_sweep ON inbox_messages (enqueued_at) {OPEN}")
