"""The circuits of subscriptions: whether a handler is away. Online: a new table and a new function."""

from __future__ import annotations

from alembic import op

revision = "0102_circuits"
down_revision = "0101_inbox_identity"
branch_labels = None
depends_on = None

TABLE = """
CREATE TABLE handler_circuits (
  subscription TEXT PRIMARY KEY,
  witnesses JSONB NOT NULL DEFAULT '{}',
  since TIMESTAMPTZ,
  failed INT NOT NULL DEFAULT 0,
  opened_at TIMESTAMPTZ,
  closed_at TIMESTAMPTZ,
  reason TEXT,
  probe_id UUID,
  probe_at TIMESTAMPTZ,
  probes INT NOT NULL DEFAULT 0
)
WITH (fillfactor = 50)
"""

#: A row if a message may be called: its handler is not away, or it is the one that is tried meanwhile. Without an
#: id:
#: if any message may be called.
MAY_CALL = """
CREATE FUNCTION relay_may_call(id UUID, of_subscription TEXT)
RETURNS SETOF BOOLEAN LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
  SELECT true
  WHERE NOT EXISTS (
    SELECT FROM handler_circuits AS c
    WHERE c.subscription = of_subscription AND c.opened_at IS NOT NULL AND coalesce(c.probe_id <> id, true));
END
"""


def upgrade() -> None:
    op.execute(TABLE)
    op.execute(MAY_CALL)


def downgrade() -> None:
    raise NotImplementedError("going back would drop committed events: restore a backup instead")
