"""Events may say until when they are worth publishing."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, do_beforehand, of_file

revision = "0123_expiry_of_events"
down_revision = "0122_rate_of_keys"
branch_labels = None
depends_on = None

# The index is empty until an event expires: a row costs an entry then, none before. The one of discarded events
# leaves expired ones out: a list of the few that an operator has given up does not read all that were too late.
BEFOREHAND = (
    "ALTER TABLE outbox_events ADD COLUMN IF NOT EXISTS expires_at TIMESTAMPTZ",
    """
    CREATE INDEX IF NOT EXISTS idx_outbox_expired ON outbox_events (dead_at)
      WHERE published_at IS NOT NULL AND expires_at <= dead_at
    """,
    """
    CREATE INDEX IF NOT EXISTS idx_outbox_given_up ON outbox_events (dead_at)
      WHERE published_at IS NOT NULL AND dead_at IS NOT NULL AND coalesce(expires_at > dead_at, true)
    """,
)

#: Whoever may name the time at which an event is due may name that at which it is stale: no new grant is needed.
GRANTS = """
DO $$ DECLARE found RECORD; BEGIN
  FOR found IN
    SELECT DISTINCT acl.grantee::regrole::text AS role
    FROM pg_attribute AS a, aclexplode(a.attacl) AS acl
    WHERE a.attrelid = 'outbox_events'::regclass AND a.attname = 'available_at'
      AND acl.privilege_type = 'INSERT' AND acl.grantee <> 0
  LOOP
    EXECUTE 'GRANT INSERT (expires_at) ON outbox_events TO ' || found.role;
  END LOOP;
END $$
"""


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    op.execute(PIN_SCHEMA)
    for statement in of_file("expiry"):
        op.execute(statement)
    op.execute(GRANTS)
    op.execute("DROP INDEX idx_outbox_discarded")
    op.execute("ALTER INDEX idx_outbox_given_up RENAME TO idx_outbox_discarded")


def downgrade() -> None:
    raise NotImplementedError("going back would publish what is stale: restore a backup instead")
