"""Pauses and limits at run time. Online: a new table, a column without a value, and functions."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0115_controls"
down_revision = "0113_deeds"
branch_labels = None
depends_on = None

#: ``interval``: the shortest time between two starts. ``former_*``: the limit before this one.
TABLE = """
CREATE TABLE controls (
  what TEXT NOT NULL,
  name TEXT NOT NULL,
  act TEXT NOT NULL,
  until TIMESTAMPTZ,
  concurrency INT,
  "interval" INTERVAL,
  former_concurrency INT,
  former_interval INTERVAL,
  reason TEXT,
  by TEXT NOT NULL,
  since TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (what, name, act),
  CONSTRAINT chk_control_what
    CHECK (what IN ('subscription', 'task_type', 'task_queue', 'event_type', 'publishing')),
  CONSTRAINT chk_control_act CHECK (act IN ('pause', 'limit'))
)
"""

#: The pause of a subscription, where every claim looks already. A time that is over: it has ended, and what has
#: waited is still to be enqueued.
COLUMN = "ALTER TABLE handler_circuits ADD COLUMN paused_until TIMESTAMPTZ"

#: As 0102, and not while the subscription is paused. Workers of the release before ask this function, too.
MAY_CALL = """
CREATE OR REPLACE FUNCTION relay_may_call(id UUID, of_subscription TEXT)
RETURNS SETOF BOOLEAN LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
  SELECT true
  WHERE NOT EXISTS (
    SELECT FROM handler_circuits AS c
    WHERE c.subscription = of_subscription
      AND ((c.opened_at IS NOT NULL AND coalesce(c.probe_id <> id, true)) OR c.paused_until > clock_timestamp()));
END
"""

#: Whoever may read and change circuits may do the same to controls: an upgrade needs no new grant.
GRANTS = """
DO $$ DECLARE found RECORD; BEGIN
  FOR found IN
    SELECT DISTINCT acl.grantee::regrole::text AS role
    FROM pg_class AS c, aclexplode(c.relacl) AS acl
    WHERE c.oid = 'handler_circuits'::regclass AND acl.privilege_type = 'UPDATE'
      AND acl.grantee <> c.relowner AND acl.grantee <> 0
  LOOP
    EXECUTE 'GRANT SELECT, INSERT, UPDATE, DELETE ON controls TO ' || found.role;
  END LOOP;
END $$
"""
BEFOREHAND = (
    # A task that is paused waits to be resumed. The rows are checked while others write.
    "ALTER TABLE task_outbox DROP CONSTRAINT IF EXISTS chk_task_waits",
    """
    ALTER TABLE task_outbox ADD CONSTRAINT chk_task_waits
      CHECK (waits_for IN ('turn', 'room', 'handler', 'resume')) NOT VALID
    """,
    "ALTER TABLE task_outbox VALIDATE CONSTRAINT chk_task_waits",
)
RENAME = (
    "ALTER TABLE task_outbox DROP CONSTRAINT chk_task_waits_for",
    "ALTER TABLE task_outbox RENAME CONSTRAINT chk_task_waits TO chk_task_waits_for",
)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    for statement in (*RENAME, TABLE, COLUMN, MAY_CALL, GRANTS):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would let go on what is paused: restore a backup instead")
