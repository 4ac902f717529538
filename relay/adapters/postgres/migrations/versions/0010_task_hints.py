"""A hint for tasks, as for events: a task begins at once, not at the next poll (DESIGN §5 and §8)."""

from __future__ import annotations

from alembic import op

revision = "0010_task_hints"
down_revision = "0009_lanes"
branch_labels = None
depends_on = None

# As relay_wake_publisher: the function finds our tables whatever the caller's search_path is.
PIN_SCHEMA = """
DO $$ BEGIN
  PERFORM set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
END $$
"""

# A NOTIFY takes a lock of the whole cluster at commit, so it is sent only to a scheduler that sleeps.
FUNCTION = """
CREATE FUNCTION relay_wake_tasks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  IF (SELECT sleeping FROM relay_wakeup) THEN
    PERFORM pg_notify('relay_outbox', 'tasks');
  END IF;
  RETURN NULL;
END $$
"""

TRIGGER = """
CREATE TRIGGER relay_wake_tasks AFTER INSERT ON task_outbox
  FOR EACH STATEMENT
  EXECUTE FUNCTION relay_wake_tasks()
"""


def upgrade() -> None:
    for statement in (PIN_SCHEMA, FUNCTION, TRIGGER):
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TRIGGER relay_wake_tasks ON task_outbox")
    op.execute("DROP FUNCTION relay_wake_tasks")
