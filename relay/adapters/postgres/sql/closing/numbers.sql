-- How far the sequences of the schema have come.
SELECT sequencename::text, coalesce(last_value, 0) FROM pg_sequences WHERE schemaname = current_schema()
