"""Count reopened events: publishers whose marks are past their places must read these again (DESIGN §5)."""

from __future__ import annotations

from alembic import op

revision = "0013_reopened"
down_revision = "0012_failed_heads"
branch_labels = None
depends_on = None

# As relay_wake_publisher: the function finds our sequence whatever the caller's search_path is.
PIN_SCHEMA = """
DO $$ BEGIN
  PERFORM set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
END $$
"""

# A sequence, because it is not part of the transaction: a session that sees the event also sees the new count.
FUNCTION = """
CREATE FUNCTION relay_count_reopened() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM nextval('relay_reopened');
  RETURN NULL;
END $$
"""

TRIGGER = """
CREATE TRIGGER relay_count_reopened AFTER UPDATE ON outbox_events
  FOR EACH ROW
  WHEN (NEW.published_at IS NULL AND NEW.dead_at IS NULL AND NEW.available_at IS NULL
        AND (num_nonnulls(OLD.published_at, OLD.dead_at, OLD.available_at) > 0
             OR NEW.partition_key <> OLD.partition_key OR NEW.seq <> OLD.seq))
  EXECUTE FUNCTION relay_count_reopened()
"""

# After TRUNCATE the places may begin again.
TRUNCATE_TRIGGER = """
CREATE TRIGGER relay_count_truncated AFTER TRUNCATE ON outbox_events
  FOR EACH STATEMENT
  EXECUTE FUNCTION relay_count_reopened()
"""


def upgrade() -> None:
    for statement in (PIN_SCHEMA, "CREATE SEQUENCE relay_reopened", FUNCTION, TRIGGER, TRUNCATE_TRIGGER):
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TRIGGER relay_count_truncated ON outbox_events")
    op.execute("DROP TRIGGER relay_count_reopened ON outbox_events")
    op.execute("DROP FUNCTION relay_count_reopened")
    op.execute("DROP SEQUENCE relay_reopened")
