"""What is ready to be published, by lane: a publisher does not read past what waits in the lanes of others."""

from __future__ import annotations

from alembic import op

revision = "0009_lanes"
down_revision = "0008_archive"
branch_labels = None
depends_on = None

DROP = "DROP INDEX idx_outbox_ready"
READY = "WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL"
# Unordered events belong to no lane.
LANE = "(CASE WHEN partition_key = '' THEN -1 ELSE hashtext(partition_key) & 63 END)"


def upgrade() -> None:
    op.execute(DROP)
    op.execute(f"CREATE INDEX idx_outbox_ready ON outbox_events ({LANE}, seq) {READY}")


def downgrade() -> None:
    op.execute(DROP)
    op.execute(f"CREATE INDEX idx_outbox_ready ON outbox_events (seq) {READY}")
