"""Producers may cancel events that have not left."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, of_file

revision = "0125_cancelling"
down_revision = "0124_expiry_of_messages"
branch_labels = None
depends_on = None

#: Whoever may write events may cancel them: no new grant is needed.
GRANTS = """
DO $$ DECLARE found RECORD; BEGIN
  REVOKE EXECUTE ON FUNCTION relay_cancel_events FROM PUBLIC;
  FOR found IN
    SELECT DISTINCT acl.grantee::regrole::text AS role
    FROM pg_proc AS p, aclexplode(p.proacl) AS acl
    WHERE p.oid = 'relay_lock_outbox'::regproc AND acl.privilege_type = 'EXECUTE' AND acl.grantee <> 0
  LOOP
    EXECUTE 'GRANT EXECUTE ON FUNCTION relay_cancel_events TO ' || found.role;
  END LOOP;
END $$
"""


def upgrade() -> None:
    op.execute(PIN_SCHEMA)
    for statement in of_file("cancelling"):
        op.execute(statement)
    op.execute(GRANTS)


def downgrade() -> None:
    raise NotImplementedError("going back would break producers that cancel: restore a backup instead")
