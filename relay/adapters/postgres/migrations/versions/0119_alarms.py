"""Alarms last as conditions do, each with the value that its rule judged; recent causes have an index."""

from __future__ import annotations

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0119_alarms"
down_revision = "0118_history"
branch_labels = None
depends_on = None

BEFOREHAND = (
    "ALTER TABLE alert_conditions ADD COLUMN IF NOT EXISTS class TEXT NOT NULL DEFAULT 'condition'",
    "ALTER TABLE alert_conditions ADD COLUMN IF NOT EXISTS value DOUBLE PRECISION",
    "CREATE INDEX IF NOT EXISTS idx_alerts_raised ON alerts (class, raised_at)",
)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)


def downgrade() -> None:
    raise NotImplementedError("nothing needs the narrower table: keep the revision")
