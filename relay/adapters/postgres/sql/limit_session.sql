-- For the transactions of functions on this connection. What is paused or stuck in one loses its locks once its
-- time is over; its claim is lost by then.
SELECT set_config('idle_in_transaction_session_timeout', %(limit)s, false),
       set_config('statement_timeout', %(limit)s, false)
