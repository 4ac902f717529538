"""Ready events by lane, place and key, and failed heads by lane: a claim skips the events behind them."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0012_failed_heads"
down_revision = "0011_inbox_room"
branch_labels = None
depends_on = None

DROP = "DROP INDEX idx_outbox_ready"
READY = "WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL"
LANE = "(CASE WHEN partition_key = '' THEN -1 ELSE hashtext(partition_key) & 63 END)"
DEAD = "(CASE WHEN dead_at IS NULL THEN 0 ELSE 1 END)"
# The key is in the index so that it is compared there: an event that is skipped because of its key is not read.
# Under another name, because the old index is used until the new one is complete.
BEFOREHAND = (
    f"""
    CREATE INDEX IF NOT EXISTS idx_outbox_ready_0012
      ON outbox_events ({LANE}, seq, hashtextextended(partition_key, 0)) {READY}
    """,
    f"""
    CREATE INDEX IF NOT EXISTS idx_outbox_heads ON outbox_events ({DEAD}, {LANE}, seq)
      WHERE published_at IS NULL AND publish_attempts > 0
    """,
)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    op.execute(DROP)
    op.execute("ALTER INDEX idx_outbox_ready_0012 RENAME TO idx_outbox_ready")


def downgrade() -> None:
    op.execute("DROP INDEX idx_outbox_heads")
    op.execute(DROP)
    op.execute(f"CREATE INDEX idx_outbox_ready ON outbox_events ({LANE}, seq) {READY}")
