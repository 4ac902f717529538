-- Limit the statements that follow in the transaction; returns what limited them before.
SELECT current_setting('statement_timeout') AS before, set_config('statement_timeout', %(limit)s, true)
