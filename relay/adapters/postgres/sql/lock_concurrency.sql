-- One at a time counts and claims tasks of a key. Not in one statement with the count, which would then see
-- the table as it was before the wait. Whoever is paused with the lock loses it after five seconds.
SELECT set_config('idle_in_transaction_session_timeout', '5s', true),
       pg_advisory_xact_lock(1785882990, hashtext(%(key)s))
