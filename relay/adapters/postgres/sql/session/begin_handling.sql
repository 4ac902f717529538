-- Limit the transaction of a Python handler. A handler that is paused or stuck loses its locks when its time is
-- over; its claim is lost by then.
SELECT set_config('idle_in_transaction_session_timeout', %(limit)s, true),
       set_config('statement_timeout', %(limit)s, true)
