-- Let one transaction at a time count and claim the tasks of a key. The count is a statement of its own, because
-- together with this one it would see the table as it was before the wait. A process that pauses with the lock
-- loses it after five seconds.
SELECT set_config('idle_in_transaction_session_timeout', '5s', true),
       pg_advisory_xact_lock(relay_concurrency_locks(), hashtext(%(key)s))
