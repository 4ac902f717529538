-- How far the database keeps transactions apart, if they do not say it.
SELECT current_setting('default_transaction_isolation') AS level
