"""Which messages were erased from streams."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, of_file

revision = "0135_erased_messages"
down_revision = "0127_subject_keys"
branch_labels = None
depends_on = None

#: Whoever may change events may erase their messages: an upgrade needs no new grant.
GRANTS = """
DO $$ DECLARE found RECORD; BEGIN
  FOR found IN
    SELECT DISTINCT acl.grantee::regrole::text AS role
    FROM pg_class AS c, aclexplode(c.relacl) AS acl
    WHERE c.oid = 'outbox_events'::regclass AND acl.privilege_type = 'UPDATE'
      AND acl.grantee <> 0 AND acl.grantee <> c.relowner
  LOOP
    EXECUTE 'GRANT SELECT, INSERT, UPDATE ON erased_messages TO ' || found.role;
  END LOOP;
END $$
"""


def upgrade() -> None:
    op.execute(PIN_SCHEMA)
    for statement in (*of_file("erased_messages"), GRANTS):
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TABLE erased_messages")
