-- Limit the transaction of a function (local), or all transactions of functions on this connection. A function
-- that is paused or stuck loses its locks when its time is over; its claim is lost already.
SELECT set_config('idle_in_transaction_session_timeout', %(limit)s, %(local)s),
       set_config('statement_timeout', %(limit)s, %(local)s)
