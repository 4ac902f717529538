"""The keys of personal values, by person."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, of_file

revision = "0127_subject_keys"
down_revision = "0126_expiry_of_tasks"
branch_labels = None
depends_on = None

#: Whoever changes events may change keys, and whoever writes events may make keys: an upgrade needs no new grant.
GRANTS = """
DO $$ DECLARE found RECORD; BEGIN
  FOR found IN
    SELECT role::regrole::text AS role, has_any_column_privilege(role, 'outbox_events', 'UPDATE') AS changes
    FROM (
      SELECT acl.grantee AS role FROM pg_class AS c, aclexplode(c.relacl) AS acl
      WHERE c.oid = 'outbox_events'::regclass AND acl.privilege_type = 'INSERT'
      UNION
      SELECT acl.grantee FROM pg_attribute AS a, aclexplode(a.attacl) AS acl
      WHERE a.attrelid = 'outbox_events'::regclass AND acl.privilege_type = 'INSERT'
    ) AS writer
    WHERE role <> 0 AND role <> (SELECT relowner FROM pg_class WHERE oid = 'outbox_events'::regclass)
  LOOP
    EXECUTE 'GRANT SELECT, INSERT (id, subject, master, wrapped) ON subject_keys TO ' || found.role;
    IF found.changes THEN
      EXECUTE 'GRANT INSERT, UPDATE ON subject_keys TO ' || found.role;
    END IF;
  END LOOP;
END $$
"""


def upgrade() -> None:
    op.execute(PIN_SCHEMA)
    for statement in (*of_file("subject_keys"), GRANTS):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would destroy the keys of personal values: restore a backup instead")
