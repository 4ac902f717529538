"""Pauses of cron jobs, in the row of the job. So a pause stays when another scheduler leads."""

from __future__ import annotations

from alembic import op

revision = "0021_pauses"
down_revision = "0020_brake"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A few rows, and no default: nothing is rewritten.
    op.execute("ALTER TABLE scheduled_jobs ADD COLUMN paused_at TIMESTAMPTZ")


def downgrade() -> None:
    op.execute("ALTER TABLE scheduled_jobs DROP COLUMN paused_at")
