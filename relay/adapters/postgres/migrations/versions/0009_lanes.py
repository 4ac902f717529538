"""Ready events by lane, so that a publisher does not read events of other publishers' lanes."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0009_lanes"
down_revision = "0008_archive"
branch_labels = None
depends_on = None

DROP = "DROP INDEX idx_outbox_ready"
READY = "WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL"
# Unordered events belong to no lane.
LANE = "(CASE WHEN partition_key = '' THEN -1 ELSE hashtext(partition_key) & 63 END)"
# Under another name, because the old index is used until the new one is complete.
BEFOREHAND = (f"CREATE INDEX IF NOT EXISTS idx_outbox_ready_0009 ON outbox_events ({LANE}, seq) {READY}",)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    op.execute(DROP)
    op.execute("ALTER INDEX idx_outbox_ready_0009 RENAME TO idx_outbox_ready")


def downgrade() -> None:
    op.execute(DROP)
    op.execute(f"CREATE INDEX idx_outbox_ready ON outbox_events (seq) {READY}")
