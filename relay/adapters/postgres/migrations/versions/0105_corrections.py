"""Corrections: which subscriptions have them since when, and what became of the one of an incident."""

from __future__ import annotations

from alembic import op

revision = "0105_corrections"
down_revision = "0104_unconfirmed"
branch_labels = None
depends_on = None

TABLE = """
CREATE TABLE corrections (
  subscription TEXT PRIMARY KEY,
  declared_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
)
"""
COLUMNS = "ALTER TABLE dead_letters ADD COLUMN corrected_at TIMESTAMPTZ, ADD COLUMN correction TEXT"


def upgrade() -> None:
    op.execute(TABLE)
    op.execute(COLUMNS)


def downgrade() -> None:
    raise NotImplementedError("going back would run corrections again: restore a backup instead")
