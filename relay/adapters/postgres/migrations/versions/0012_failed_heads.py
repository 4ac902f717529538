"""Ready events by lane, place and key, and failed heads by lane: a claim passes over what waits behind them."""

from __future__ import annotations

from alembic import op

revision = "0012_failed_heads"
down_revision = "0011_inbox_room"
branch_labels = None
depends_on = None

DROP = "DROP INDEX idx_outbox_ready"
READY = "WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL"
LANE = "(CASE WHEN partition_key = '' THEN -1 ELSE hashtext(partition_key) & 63 END)"
DEAD = "(CASE WHEN dead_at IS NULL THEN 0 ELSE 1 END)"


def upgrade() -> None:
    # The key is there to be compared within the index: an event that is not taken for its key's sake is not read.
    op.execute(DROP)
    op.execute(
        f"CREATE INDEX idx_outbox_ready ON outbox_events ({LANE}, seq, hashtextextended(partition_key, 0)) {READY}"
    )
    op.execute(
        f"CREATE INDEX idx_outbox_heads ON outbox_events ({DEAD}, {LANE}, seq) "
        "WHERE published_at IS NULL AND publish_attempts > 0"
    )


def downgrade() -> None:
    op.execute("DROP INDEX idx_outbox_heads")
    op.execute(DROP)
    op.execute(f"CREATE INDEX idx_outbox_ready ON outbox_events ({LANE}, seq) {READY}")
