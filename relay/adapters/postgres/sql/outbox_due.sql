-- Is there anything to publish? Reads at most one entry of each partial index.
SELECT EXISTS (
    SELECT 1 FROM outbox_events
    WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL
) OR EXISTS (
    SELECT 1 FROM outbox_events
    WHERE published_at IS NULL AND dead_at IS NULL AND available_at <= now()
)
