-- The inbox: SDS-047 §9, extended as DESIGN §4 says. Its own columns come after those of the specification.

-- Half of each page is room for a second version of its rows: a claim then stays on its page and writes no index. When
-- a row is settled, which does write indexes, it takes the room that its claim has left. So the table does not grow.
-- Revision 0112 keeps less room.
-- Vacuuming: as of the outbox.
CREATE TABLE inbox_messages (
  message_id UUID PRIMARY KEY,
  subject TEXT NOT NULL,
  received_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
  processed_at TIMESTAMPTZ,
  attempts INT NOT NULL DEFAULT 0,
  last_error TEXT,

  subscription TEXT,
  stream TEXT,
  stream_seq BIGINT,
  ack_subject TEXT,
  body BYTEA,
  headers JSONB NOT NULL DEFAULT '{}',
  event_type TEXT,
  event_version INT,
  occurred_at TIMESTAMPTZ,
  partition_key TEXT,
  correlation_id UUID,
  causation_id UUID,
  next_attempt_at TIMESTAMPTZ,
  enqueued_at TIMESTAMPTZ,
  claim_token UUID,
  claimed_until TIMESTAMPTZ,
  dead_letter_reason TEXT,
  dead_letter_class TEXT,
  dead_lettered_at TIMESTAMPTZ,
  -- How often an operator has requeued the message. It distinguishes the message's dead letters.
  requeues INT NOT NULL DEFAULT 0,
  -- A message of an ordered subscription has a key and a place; all others leave them empty and pay nothing. The place
  -- is the message's first one: a later copy in the stream must not move it behind later messages.
  order_key TEXT,
  order_seq BIGINT,
  stepped_over BOOLEAN NOT NULL DEFAULT false,
  -- The texts of ids that are not UUIDs. NULL almost everywhere.
  originals JSONB,

  CONSTRAINT chk_inbox_processed_after_received
    CHECK (processed_at IS NULL OR processed_at >= received_at)
)
WITH (autovacuum_vacuum_scale_factor = 0.02,
      autovacuum_vacuum_threshold = 1000,
      autovacuum_vacuum_cost_delay = 0,
      autovacuum_vacuum_insert_scale_factor = 0.1,
      fillfactor = 50);

CREATE INDEX idx_inbox_unprocessed ON inbox_messages (received_at) WHERE processed_at IS NULL;
CREATE INDEX idx_inbox_correlation ON inbox_messages (correlation_id);
CREATE INDEX idx_inbox_stream ON inbox_messages (stream, stream_seq);

-- For the sweep, by subscription, so that it does not read messages of other subscriptions.
CREATE INDEX idx_inbox_sweep ON inbox_messages (subscription, enqueued_at)
  WHERE processed_at IS NULL AND dead_lettered_at IS NULL;

CREATE INDEX idx_inbox_dead_lettered ON inbox_messages (dead_lettered_at) WHERE dead_lettered_at IS NOT NULL;

-- Messages that failed and are tried again, however many others wait. Partial: a message costs an entry when it fails,
-- none when it comes or is processed.
CREATE INDEX idx_inbox_failing ON inbox_messages (received_at)
  WHERE num_nonnulls(last_error, dead_letter_reason) > 0 AND processed_at IS NULL AND dead_lettered_at IS NULL;

-- For the archive, as idx_outbox_published.
CREATE INDEX idx_inbox_processed ON inbox_messages (processed_at) WHERE processed_at IS NOT NULL;

-- Rows that hold their key, in order: the first entry of a key is its head.
CREATE INDEX idx_inbox_order ON inbox_messages (subscription, order_key, order_seq, message_id)
  WHERE order_key IS NOT NULL AND processed_at IS NULL AND NOT stepped_over;

-- Up to where everything that was delivered is known to be in the inbox.
CREATE TABLE inbox_watermarks (
  subscription TEXT NOT NULL,
  stream TEXT NOT NULL,
  consumer_seq BIGINT,
  stream_seq BIGINT NOT NULL DEFAULT 0,
  ahead JSONB NOT NULL DEFAULT '[]',

  PRIMARY KEY (subscription, stream)
);

CREATE TABLE parked_keys (
  subscription TEXT NOT NULL,
  order_key TEXT NOT NULL,
  parked_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
  message_id UUID NOT NULL,
  reason TEXT NOT NULL,

  PRIMARY KEY (subscription, order_key)
);

-- Messages that handlers in an application's own process have handled (DESIGN §4).
CREATE TABLE processed_events (
  handler TEXT NOT NULL,
  message_id UUID NOT NULL,
  processed_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),

  PRIMARY KEY (handler, message_id)
);

CREATE INDEX idx_processed_events_age ON processed_events (processed_at);
