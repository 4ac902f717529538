"""A rate may be of each key: controls say so, and rows of keys that hold nothing back are found and deleted."""

from __future__ import annotations

from alembic import op

revision = "0122_rate_of_keys"
down_revision = "0120_attempts"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE controls
  ADD COLUMN per_key BOOLEAN NOT NULL DEFAULT false,
  ADD COLUMN former_per_key BOOLEAN NOT NULL DEFAULT false
"""

#: The rates of keys have a line break before the key: relay/domain/controls.py. A type has none.
INDEX = """
CREATE INDEX idx_task_rates_keys ON task_rates (greatest(free_at, promised_until))
  WHERE strpos(type, E'\\n') > 0
"""

#: Whoever may change rates may delete those of keys: an upgrade needs no new grant.
GRANTS = """
DO $$ DECLARE found RECORD; BEGIN
  FOR found IN
    SELECT DISTINCT acl.grantee::regrole::text AS role
    FROM pg_class AS c, aclexplode(c.relacl) AS acl
    WHERE c.oid = 'task_rates'::regclass AND acl.privilege_type = 'UPDATE'
      AND acl.grantee <> c.relowner AND acl.grantee <> 0
  LOOP
    EXECUTE 'GRANT DELETE ON task_rates TO ' || found.role;
  END LOOP;
END $$
"""


def upgrade() -> None:
    for statement in (COLUMNS, INDEX, GRANTS):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would make the rates of keys rates of all: restore a backup instead")
