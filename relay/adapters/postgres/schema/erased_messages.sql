-- Messages that were erased from a stream because they held what is to be forgotten. So reconciliation does not publish
-- them again. event_id: the event of this outbox, if it is one.
CREATE TABLE erased_messages (
  stream TEXT NOT NULL,
  stream_seq BIGINT NOT NULL,
  event_id UUID,
  erased_at TIMESTAMPTZ NOT NULL DEFAULT now(),
  CONSTRAINT pk_erased_messages PRIMARY KEY (stream, stream_seq)
);
