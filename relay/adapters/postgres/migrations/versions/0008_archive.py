"""Archived batches, and the indexes by which old rows are found (DESIGN §2, MicroDAO §17)."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0008_archive"
down_revision = "0007_inbox_sweep"
branch_labels = None
depends_on = None

# Written in the transaction that deletes the rows. It says that they are in the archive.
BATCHES = """
CREATE TABLE archive_batches (
  kind TEXT NOT NULL,
  number BIGINT NOT NULL,
  rows BIGINT NOT NULL,
  size BIGINT NOT NULL,
  sha256 TEXT NOT NULL,
  first_id UUID NOT NULL,
  first_at TIMESTAMPTZ NOT NULL,
  last_id UUID NOT NULL,
  last_at TIMESTAMPTZ NOT NULL,
  archived_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
  announced_at TIMESTAMPTZ,

  PRIMARY KEY (kind, number),
  CONSTRAINT chk_archive_kind CHECK (kind IN ('outbox', 'inbox', 'tasks'))
)
"""

# Rows of one batch end at one time. So these indexes grow at their end and store equal times once.
BEFOREHAND = (
    """
    CREATE INDEX IF NOT EXISTS idx_outbox_published ON outbox_events (published_at)
      WHERE published_at IS NOT NULL
    """,
    """
    CREATE INDEX IF NOT EXISTS idx_inbox_processed ON inbox_messages (processed_at)
      WHERE processed_at IS NOT NULL
    """,
    "CREATE INDEX IF NOT EXISTS idx_task_finished ON task_outbox (finished_at) WHERE finished_at IS NOT NULL",
)

UNANNOUNCED = "CREATE INDEX idx_archive_unannounced ON archive_batches (archived_at) WHERE announced_at IS NULL"


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    for statement in (BATCHES, UNANNOUNCED):
        op.execute(statement)


def downgrade() -> None:
    for index in ("idx_outbox_published", "idx_inbox_processed", "idx_task_finished"):
        op.execute(f"DROP INDEX {index}")
    op.execute("DROP TABLE archive_batches")
