"""Rules that many statements share, each written once: lanes, classes of locks, failed heads, used attempts.

The planner replaces each call of these functions by its text (LANGUAGE sql, one expression, no SECURITY DEFINER,
no SET). So a call of `relay_lane` matches the indexes, which hold the expression itself.
"""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0015_rules"
down_revision = "0014_outbox_locks"
branch_labels = None
depends_on = None

# Signature, type and text. A function stands after those that it calls.
RULES = (
    # A key belongs to one of 64 lanes. An event without a key belongs to none.
    ("relay_lane_of_hash(hash INT)", "INT", "hash & 63"),
    (
        "relay_lane(partition_key TEXT)",
        "INT",
        "CASE WHEN partition_key = '' THEN -1 ELSE relay_lane_of_hash(hashtext(partition_key)) END",
    ),
    # Classes of advisory locks. 1785882986 is that of upgrades and grants, which come before these functions.
    # Lanes: held by their publisher until its claim ends.
    ("relay_publisher_locks()", "INT", "1785882987"),
    # Hashes of keys: held by a transaction that has written an event of the key, until its commit.
    ("relay_key_locks()", "INT", "1785882988"),
    # Lanes: shared by writers, together with keys. A writer of over 64 keys holds all lanes alone instead.
    ("relay_lane_locks()", "INT", "1785882989"),
    # Concurrency keys of tasks: held while their running tasks are counted and one is claimed.
    ("relay_concurrency_locks()", "INT", "1785882990"),
    # The archive: held by the one batch that is being made.
    ("relay_archive_locks()", "INT", "1785882991"),
    # Whether a failed event keeps a later one of its key waiting. A replayed event that fails only holds back
    # other replays. A dead event holds back others if dead heads block.
    (
        "relay_holds_back(generation INT, dead_at TIMESTAMPTZ, later_generation INT, dead_head_blocks BOOLEAN)",
        "BOOLEAN",
        "(generation = 0 OR later_generation > 0) AND (dead_at IS NULL OR dead_head_blocks)",
    ),
    # Whether a message has used up its attempts without a result: another call would kill the next worker too. A
    # rejected message has its verdict already.
    (
        "relay_exhausted(dead_letter_reason TEXT, attempts INT, max_attempts INT)",
        "BOOLEAN",
        "dead_letter_reason IS NULL AND attempts >= max_attempts",
    ),
)
# Writers of the release before call these through relay_lock_outbox, even before the next `relay db grant`.
EVERYBODY = "relay_lane_of_hash, relay_key_locks, relay_lane_locks"
BEFOREHAND = (
    *(
        f"CREATE OR REPLACE FUNCTION {signature} RETURNS {kind} LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN {text}"
        for signature, kind, text in RULES
    ),
    f"GRANT EXECUTE ON FUNCTION {EVERYBODY} TO PUBLIC",
)

# As relay_wake_publisher: the function finds our sequence whatever the caller's search_path is.
PIN_SCHEMA = """
DO $$ BEGIN
  PERFORM set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
END $$
"""

# The next three are those of 0014, where the reasons stand, with names for their numbers.
LOCK = """
CREATE OR REPLACE FUNCTION relay_lock_outbox(wanted INT[]) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  noted CONSTANT TEXT := coalesce(current_setting('relay.outbox_keys', true), '');
  held INT[] := '{}';
  keys INT[] := wanted;
  every BOOLEAN;
  patience INTERVAL := '300 milliseconds';
  tries INT := 0;
BEGIN
  IF noted = 'all' OR cardinality(wanted) = 0 THEN
    RETURN false;
  ELSIF noted <> '' THEN
    held := noted;
  END IF;
  IF cardinality(wanted) > 1 THEN
    keys := ARRAY(SELECT key FROM (SELECT DISTINCT key FROM unnest(wanted) AS key) AS one
                  ORDER BY relay_lane_of_hash(key), key);
  END IF;
  IF cardinality(held) > 0 THEN
    keys := ARRAY(SELECT key FROM unnest(keys) AS key WHERE key <> ALL (held));
  END IF;
  IF cardinality(keys) = 0 THEN
    RETURN false;
  END IF;
  every := cardinality(held) + cardinality(keys) > 64;
  IF cardinality(held) > 0 OR cardinality(keys) = 1 OR current_setting('lock_timeout') <> '0' THEN
    RETURN relay_take_outbox_locks(held, keys, every, NULL);
  END IF;
  LOOP
    BEGIN
      RETURN relay_take_outbox_locks(held, keys, every, clock_timestamp() + patience);
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
      tries := tries + 1;
      patience := CASE WHEN tries < 100 THEN patience END;
      PERFORM pg_sleep(0.05 * random());
    END;
  END LOOP;
END $$
"""

TAKE = """
CREATE OR REPLACE FUNCTION relay_take_outbox_locks(held INT[], keys INT[], every BOOLEAN, until TIMESTAMPTZ)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  item INT;
  noted TEXT;
BEGIN
  IF every THEN
    FOR lane IN 0..63 LOOP
      IF NOT pg_try_advisory_xact_lock(relay_lane_locks(), lane) THEN
        PERFORM relay_limit_wait(until);
        PERFORM pg_advisory_xact_lock(relay_lane_locks(), lane);
      END IF;
    END LOOP;
    noted := set_config('relay.outbox_keys', 'all', true);
  ELSE
    FOREACH item IN ARRAY keys LOOP
      IF NOT pg_try_advisory_xact_lock(relay_key_locks(), item) THEN
        PERFORM relay_limit_wait(until);
        PERFORM pg_advisory_xact_lock(relay_key_locks(), item);
      END IF;
    END LOOP;
    FOREACH item IN ARRAY keys LOOP
      IF NOT pg_try_advisory_xact_lock_shared(relay_lane_locks(), relay_lane_of_hash(item)) THEN
        PERFORM relay_limit_wait(until);
        PERFORM pg_advisory_xact_lock_shared(relay_lane_locks(), relay_lane_of_hash(item));
      END IF;
    END LOOP;
    noted := set_config('relay.outbox_keys', (held || keys)::TEXT, true);
  END IF;
  IF until IS NOT NULL THEN
    noted := set_config('lock_timeout', '0', true);
  END IF;
  RETURN true;
END $$
"""

ORDER_FUNCTION = """
CREATE OR REPLACE FUNCTION relay_order_outbox_event() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  key INT;
  lane INT;
BEGIN
  NEW.partition_key := NEW.aggregate_type || ':' || NEW.aggregate_id;
  IF current_setting('relay.outbox_raw', true) IS DISTINCT FROM 'on' THEN
    PERFORM set_config('relay.outbox_raw', 'on', true);
    key := hashtext(NEW.partition_key);
    lane := relay_lane_of_hash(key);
    PERFORM pg_advisory_lock(relay_key_locks(), key), pg_advisory_unlock(relay_key_locks(), key);
    PERFORM pg_advisory_lock_shared(relay_lane_locks(), lane), pg_advisory_unlock_shared(relay_lane_locks(), lane);
    NEW.seq := nextval('outbox_events_seq_seq');
  END IF;
  RETURN NEW;
END $$
"""


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    for statement in (PIN_SCHEMA, TAKE, LOCK, ORDER_FUNCTION):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("nothing before 0014 can be gone back to, and its functions call these")
