-- Open the transaction of a Python handler. What is paused or stuck in it loses its locks once the
-- handler's time is over; its claim is lost by then.
SELECT set_config('idle_in_transaction_session_timeout', %(limit)s, true),
       set_config('statement_timeout', %(limit)s, true)
