"""The brake on producers, in the row that tells them whether the outbox sleeps."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0020_brake"
down_revision = "0019_archived_ids"
branch_labels = None
depends_on = None

# Without defaults, so that the row is not rewritten. The brake lasts until brake_until, by the clock of this
# database. So a scheduler that has ended leaves no brake for ever.
COLUMNS = (
    "brake TEXT",
    "brake_delay INTERVAL",
    "brake_reason TEXT",
    "brake_since TIMESTAMPTZ",
    "brake_until TIMESTAMPTZ",
)
BEFOREHAND = tuple(f"ALTER TABLE relay_wakeup ADD COLUMN IF NOT EXISTS {column}" for column in COLUMNS)

# As in 0001: the functions find our tables whatever the caller's search_path is.
PIN_SCHEMA = """
DO $$ BEGIN
  PERFORM set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
END $$
"""

# Once for each transaction, before it takes locks of keys, so that no other waits for a delayed transaction. The
# note in the transaction names the schema, because contexts may share a database.
#
# A warning also goes to the log of the server, so a session gives one in ten seconds. The time of the last one
# stays in a setting of the session; behind a pooler another client may read it, and then it is warned later.
#
# The relay's own sessions run handlers and tasks. To refuse them would spend attempts and end in dead letters. To
# delay them slows down a consumer that produces too much.
BRAKE = """
CREATE OR REPLACE FUNCTION relay_brake_producer(told TEXT) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  held relay_wakeup;
  at CONSTANT FLOAT8 := extract(epoch FROM clock_timestamp());
  silent CONSTANT BOOLEAN := at <= coalesce(nullif(current_setting('relay.warned_at', true), '')::FLOAT8, 0) + 10;
BEGIN
  IF (told = 'warn' AND silent) OR current_setting('relay.braked', true) = current_schema() THEN
    RETURN;
  END IF;
  SELECT * INTO held FROM relay_wakeup WHERE brake_until > clock_timestamp();
  IF held.brake IS NULL THEN
    RETURN;
  ELSIF held.brake = 'refuse' AND NOT starts_with(current_setting('application_name'), 'jetrelay-') THEN
    RAISE configuration_limit_exceeded USING
      MESSAGE = 'OUTBOX_FULL: ' || held.brake_reason,
      HINT = 'nothing was recorded: roll back, and run the whole transaction again later',
      CONSTRAINT = 'relay_brake';
  END IF;
  PERFORM set_config('relay.braked', current_schema(), true);
  IF NOT silent THEN
    PERFORM set_config('relay.warned_at', at::TEXT, false);
    RAISE WARNING USING MESSAGE = 'OUTBOX_FULL: ' || held.brake_reason, CONSTRAINT = 'relay_brake';
  END IF;
  IF held.brake <> 'warn' THEN
    PERFORM pg_sleep_for(held.brake_delay);
  END IF;
END $$
"""

# The function of 0001, and the brake, with one read for both. A brake that has ended by itself costs nothing.
WAKE = """
CREATE OR REPLACE FUNCTION relay_wake_publisher() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  asleep BOOLEAN;
  told TEXT;
BEGIN
  SELECT sleeping, CASE WHEN brake_until > clock_timestamp() THEN brake END INTO asleep, told FROM relay_wakeup;
  IF asleep THEN
    PERFORM pg_notify('relay_outbox', '');
  END IF;
  IF told IS NOT NULL THEN
    PERFORM relay_brake_producer(told);
  END IF;
  RETURN NULL;
END $$
"""

# It was AFTER INSERT. A hint goes at the commit in any case.
TRIGGER = """
CREATE OR REPLACE TRIGGER relay_wake_publisher BEFORE INSERT ON outbox_events
  FOR EACH STATEMENT
  EXECUTE FUNCTION relay_wake_publisher()
"""


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    for statement in (PIN_SCHEMA, BRAKE, WAKE, TRIGGER):
        op.execute(statement)


# As 0001 made it.
WAKE_BEFORE = """
CREATE OR REPLACE FUNCTION relay_wake_publisher() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  IF (SELECT sleeping FROM relay_wakeup) THEN
    PERFORM pg_notify('relay_outbox', '');
  END IF;
  RETURN NULL;
END $$
"""
TRIGGER_BEFORE = TRIGGER.replace("BEFORE INSERT", "AFTER INSERT")


def downgrade() -> None:
    """Schedulers with a section ``backpressure`` must stop before: they write the columns."""
    for statement in (PIN_SCHEMA, WAKE_BEFORE, TRIGGER_BEFORE):
        op.execute(statement)
    op.execute("DROP FUNCTION relay_brake_producer(TEXT)")
    for column in COLUMNS:
        op.execute(f"ALTER TABLE relay_wakeup DROP COLUMN {column.split()[0]}")
