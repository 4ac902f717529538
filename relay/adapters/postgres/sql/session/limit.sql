-- Limit the transaction of a function (local), or all transactions of functions on this connection. A function
-- that is paused or stuck loses its locks when its time is over; its claim is lost already. A statement ends a moment
-- earlier, so that PostgreSQL can say what it waited for.
SELECT set_config('idle_in_transaction_session_timeout', %(limit)s, %(local)s),
       set_config('statement_timeout', (%(limit)s::int - least(1000, %(limit)s::int / 4))::text, %(local)s)
