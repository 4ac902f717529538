-- Whether the last alert is long enough ago.
SELECT NOT EXISTS (SELECT 1 FROM dead_letters WHERE alerted_at > clock_timestamp() - %(spacing)s::interval)
