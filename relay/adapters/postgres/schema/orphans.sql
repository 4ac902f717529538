-- Events that a stream of the context holds and its outbox does not know: the database was set back to an older state.
-- A row stays until the outbox knows the event again. reported_at: an operator has told the consumers.
CREATE TABLE orphaned_events (
  event_id UUID PRIMARY KEY,
  stream TEXT NOT NULL,
  stream_seq BIGINT NOT NULL,
  stored_at TIMESTAMPTZ NOT NULL,
  found_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
  reported_at TIMESTAMPTZ
);

-- Up to where the events of a stream have left the outbox for the archive, and when the last of them left. The archive
-- keeps no ids of events.
CREATE TABLE archived_events (
  stream TEXT PRIMARY KEY,
  last_seq BIGINT NOT NULL,
  archived_at TIMESTAMPTZ NOT NULL
);

CREATE INDEX idx_orphans_open ON orphaned_events (stream, stream_seq) WHERE reported_at IS NULL;
