"""A producer need not give an event an id: an INSERT of aggregate, type and payload is enough."""

from __future__ import annotations

from alembic import op

revision = "0022_event_id"
down_revision = "0021_pauses"
branch_labels = None
depends_on = None

# Only the catalogue changes: no row is rewritten. The function comes with the server, so no producer needs a right
# to call one of ours. Before PostgreSQL 18 ids do not grow with time, so entries of the index that belong together
# are less close.
DEFAULT = """
DO $$ BEGIN
  IF to_regprocedure('pg_catalog.uuidv7()') IS NULL THEN
    ALTER TABLE outbox_events ALTER COLUMN id SET DEFAULT gen_random_uuid();
  ELSE
    ALTER TABLE outbox_events ALTER COLUMN id SET DEFAULT uuidv7();
  END IF;
END $$
"""


def upgrade() -> None:
    op.execute(DEFAULT)


def downgrade() -> None:
    op.execute("ALTER TABLE outbox_events ALTER COLUMN id DROP DEFAULT")
