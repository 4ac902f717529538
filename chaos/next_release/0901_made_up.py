"""A made-up revision of what runs beforehand: a column, a function, and an index in another's place."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand
from relay.adapters.postgres.revisions import newest

revision = "0901_made_up"
down_revision = newest()
branch_labels = None
depends_on = None

BEFOREHAND = (
    "ALTER TABLE inbox_messages ADD COLUMN IF NOT EXISTS made_up TEXT",
    "CREATE OR REPLACE FUNCTION relay_made_up() RETURNS INT LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1",
    # Under another name, because the old index is used until the new one is complete.
    """
    CREATE INDEX IF NOT EXISTS idx_outbox_unpublished_0101 ON outbox_events (occurred_at, seq)
      WHERE published_at IS NULL
    """,
)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    op.execute("DROP INDEX idx_outbox_unpublished")
    op.execute("ALTER INDEX idx_outbox_unpublished_0101 RENAME TO idx_outbox_unpublished")
