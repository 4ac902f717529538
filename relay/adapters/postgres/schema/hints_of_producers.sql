-- A transaction with a NOTIFY cannot be prepared (two-phase commit). Schedulers want no hints where the server allows
-- that, but one that has ended, or is older, may have left word that it sleeps.
CREATE OR REPLACE FUNCTION relay_wake_publisher() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  asleep BOOLEAN;
  told TEXT;
BEGIN
  SELECT sleeping, CASE WHEN brake_until > clock_timestamp() THEN brake END INTO asleep, told FROM relay_wakeup;
  IF asleep AND current_setting('max_prepared_transactions') = '0' THEN
    PERFORM pg_notify('relay_outbox', '');
  END IF;
  IF told IS NOT NULL THEN
    PERFORM relay_brake_producer(told);
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION relay_wake_tasks() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  IF (SELECT sleeping FROM relay_wakeup) AND current_setting('max_prepared_transactions') = '0' THEN
    PERFORM pg_notify('relay_outbox', 'tasks');
  END IF;
  RETURN NULL;
END $$;
