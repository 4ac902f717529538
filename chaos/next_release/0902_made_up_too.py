"""A made-up revision that needs tables for itself for a moment, also without readers: a rule and two triggers."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA

revision = "0902_made_up_too"
down_revision = "0901_made_up"
branch_labels = None
depends_on = None

FUNCTION = """
CREATE FUNCTION relay_do_nothing() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  RETURN NULL;
END $$
"""

NEW_TRIGGER = """
CREATE TRIGGER relay_do_nothing AFTER INSERT ON inbox_messages
  FOR EACH STATEMENT
  EXECUTE FUNCTION relay_do_nothing()
"""

# As it was, with a condition more that is always true.
TRIGGER = """
CREATE OR REPLACE TRIGGER relay_count_reopened AFTER UPDATE ON outbox_events
  FOR EACH ROW
  WHEN (NEW.published_at IS NULL AND NEW.dead_at IS NULL AND NEW.available_at IS NULL
        AND (num_nonnulls(OLD.published_at, OLD.dead_at, OLD.available_at) > 0
             OR NEW.partition_key <> OLD.partition_key OR NEW.seq < OLD.seq)
        AND NEW.id IS NOT NULL)
  EXECUTE FUNCTION relay_count_reopened()
"""


RULE = "ALTER TABLE outbox_events ADD CONSTRAINT chk_made_up CHECK (generation >= 0) NOT VALID"


def upgrade() -> None:
    for statement in (PIN_SCHEMA, FUNCTION, NEW_TRIGGER, TRIGGER, RULE):
        op.execute(statement)
