-- Have messages that are not processed refer to what a large payload is now. Readers go by this header.
WITH changed AS (
    UPDATE inbox_messages
    SET headers = jsonb_set(headers, ARRAY[%(header)s::text], to_jsonb(%(new)s::text))
    WHERE processed_at IS NULL AND headers ->> %(header)s = %(old)s
    RETURNING 1
)
SELECT count(*) FROM changed
