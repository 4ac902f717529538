-- Whether messages name the context that holds a part of them: keys of persons, and large payloads. A stored value is
-- hardly smaller than a thousandth of its text.
SELECT EXISTS (SELECT FROM subject_keys),
       EXISTS (SELECT FROM outbox_events
               WHERE pg_column_size(payload) > %(limit)s::int / 1000 AND octet_length(payload::text) > %(limit)s)
