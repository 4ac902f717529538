"""An index by subscription for the sweep, so that it does not read messages of other subscriptions."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0007_inbox_sweep"
down_revision = "0006_scheduler"
branch_labels = None
depends_on = None

DROP = "DROP INDEX idx_inbox_sweep"
OPEN = "WHERE processed_at IS NULL AND dead_lettered_at IS NULL"
# Under another name, because the old index is used until the new one is complete.
BEFOREHAND = (
    f"CREATE INDEX IF NOT EXISTS idx_inbox_sweep_0007 ON inbox_messages (subscription, enqueued_at) {OPEN}",
)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    op.execute(DROP)
    op.execute("ALTER INDEX idx_inbox_sweep_0007 RENAME TO idx_inbox_sweep")


def downgrade() -> None:
    op.execute(DROP)
    op.execute(f"CREATE INDEX idx_inbox_sweep ON inbox_messages (enqueued_at) {OPEN}")
