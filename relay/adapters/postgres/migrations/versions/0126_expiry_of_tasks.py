"""Tasks may say until when they are worth running."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, do_beforehand, of_file

revision = "0126_expiry_of_tasks"
down_revision = "0125_cancelling"
branch_labels = None
depends_on = None

BEFOREHAND = ("ALTER TABLE task_outbox ADD COLUMN IF NOT EXISTS expires_at TIMESTAMPTZ",)

#: As of events: who may name the time at which a task is due may name that at which it is stale.
GRANTS = """
DO $$ DECLARE found RECORD; BEGIN
  FOR found IN
    SELECT DISTINCT acl.grantee::regrole::text AS role
    FROM pg_attribute AS a, aclexplode(a.attacl) AS acl
    WHERE a.attrelid = 'task_outbox'::regclass AND a.attname = 'available_at'
      AND acl.privilege_type = 'INSERT' AND acl.grantee <> 0
  LOOP
    EXECUTE 'GRANT INSERT (expires_at) ON task_outbox TO ' || found.role;
  END LOOP;
END $$
"""


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    op.execute(PIN_SCHEMA)
    for statement in of_file("expiry_of_tasks"):
        op.execute(statement)
    op.execute(GRANTS)


def downgrade() -> None:
    raise NotImplementedError("going back would run what is stale: restore a backup instead")
