-- Whether the inbox takes messages: the server writes, and nobody has closed the tables.
SELECT current_setting('transaction_read_only') = 'off' AND NOT EXISTS (
    SELECT FROM pg_trigger WHERE tgrelid = to_regclass('inbox_messages') AND tgname = 'relay_closed')
