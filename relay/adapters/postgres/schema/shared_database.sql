-- Contexts that share a database, each in a schema of its own, do not wait for each other.

-- Advisory locks and settings of a transaction belong to the whole database. So outside of the schema public their
-- numbers and names are the schema's own: the five classes of locks follow a number made from the schema's name, and
-- so do the settings relay.outbox_keys and relay.outbox_raw, which say what a transaction holds, and which of its
-- statements is raw SQL. relay_lock_outbox is called by producers whose search_path may not hold our schema, and calls
-- our functions.
DO $$
DECLARE
  first CONSTANT INT := hashtext('jetrelay ' || current_schema()) & 2147483640;
  name TEXT;
  place INT := 0;
BEGIN
  IF current_schema() = 'public' THEN
    RETURN;
  END IF;
  ALTER FUNCTION relay_lock_outbox(INT[]) SET search_path FROM CURRENT;
  FOREACH name IN ARRAY ARRAY['publisher', 'key', 'lane', 'concurrency', 'archive'] LOOP
    EXECUTE 'CREATE OR REPLACE FUNCTION relay_' || name || '_locks() RETURNS INT'
            || ' LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN ' || (first + place);
    place := place + 1;
  END LOOP;
  FOREACH name IN ARRAY
      ARRAY['lock_outbox', 'take_outbox_locks', 'order_outbox_event', 'number_outbox_events'] LOOP
    EXECUTE (SELECT replace(replace(pg_get_functiondef(oid), 'relay.outbox_keys', 'relay.outbox_keys_' || first),
                            'relay.outbox_raw', 'relay.outbox_raw_' || first)
             FROM pg_proc WHERE proname = 'relay_' || name AND pronamespace = current_schema()::regnamespace);
  END LOOP;
  EXECUTE (SELECT replace(replace(pg_get_triggerdef(oid), 'relay.outbox_raw', 'relay.outbox_raw_' || first),
                          'CREATE TRIGGER', 'CREATE OR REPLACE TRIGGER')
           FROM pg_trigger WHERE tgname = 'relay_number_outbox_events' AND tgrelid = 'outbox_events'::regclass);
END $$;
