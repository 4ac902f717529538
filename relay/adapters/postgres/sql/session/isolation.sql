-- How far the database keeps transactions apart, if they do not say it, and where the session looks for tables.
SELECT current_setting('default_transaction_isolation') AS level, current_setting('search_path') AS path
