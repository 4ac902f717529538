-- What a context did in each minute of the last two days and each hour of the last 90 days. The leader writes it.
-- kind: outbox (its name is empty), subscription or task; or a release of the workers that was there. A row of the outbox is there for each minute that was
-- recorded; others only when there was something. So a minute without a row of the outbox is a gap.
-- handling, waited: how many took how long, as {"bucket": count} (`relay.domain.history`).
CREATE TABLE history (
  step TEXT NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  at TIMESTAMPTZ NOT NULL,
  minutes INT NOT NULL DEFAULT 1,
  done BIGINT NOT NULL DEFAULT 0,
  failed BIGINT NOT NULL DEFAULT 0,
  died BIGINT NOT NULL DEFAULT 0,
  waiting BIGINT NOT NULL DEFAULT 0,
  oldest_seconds DOUBLE PRECISION NOT NULL DEFAULT 0,
  dead BIGINT NOT NULL DEFAULT 0,
  handling JSONB NOT NULL DEFAULT '{}',
  waited JSONB NOT NULL DEFAULT '{}',

  PRIMARY KEY (step, kind, name, at),
  CONSTRAINT chk_history_step CHECK (step IN ('minute', 'hour'))
);

-- For all series of a time, and to delete old rows.
CREATE INDEX idx_history_at ON history (step, at);

-- What workers counted since they last told it, until the leader adds it to a minute.
CREATE TABLE history_tallies (
  at TIMESTAMPTZ NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  failed BIGINT NOT NULL,
  handling JSONB NOT NULL
);
