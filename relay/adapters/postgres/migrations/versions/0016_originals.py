"""The texts of ids that are not UUIDs, beside the UUIDs that stand for them."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0016_originals"
down_revision = "0015_rules"
branch_labels = None
depends_on = None

TABLES = ("outbox_events", "inbox_messages", "dead_letters", "task_outbox")
# Without a default and NULL almost everywhere: no row is rewritten, and a row without texts does not grow.
BEFOREHAND = (
    *(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS originals JSONB" for table in TABLES),
    # An event that was written by SQL may have any UUID, so only its text shows that it exists already.
    """
    CREATE UNIQUE INDEX IF NOT EXISTS uq_outbox_original ON outbox_events ((originals ->> 'id'))
      WHERE originals ->> 'id' IS NOT NULL
    """,
)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)


def downgrade() -> None:
    op.execute("DROP INDEX uq_outbox_original")
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} DROP COLUMN originals")
