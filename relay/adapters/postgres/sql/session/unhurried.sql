-- What a command of the owner needs: the limits of services are not for it. It waits in its own way, and ends with
-- whoever runs it.
SELECT set_config(name, '0', false)
FROM pg_settings
WHERE name IN ('statement_timeout', 'lock_timeout', 'transaction_timeout', 'idle_session_timeout',
               'idle_in_transaction_session_timeout')
