-- The rows that were counted for an act, until it is done: those that come later are left. `ids` is null where the
-- rows are in files: then `wanted` says up to which batch.
CREATE TABLE selections (
  id UUID PRIMARY KEY,
  made_at TIMESTAMPTZ NOT NULL DEFAULT now(),
  kind TEXT NOT NULL,
  action TEXT NOT NULL,
  ids TEXT[],
  wanted JSONB
);

CREATE INDEX idx_selections_made ON selections (made_at);

-- Of an act: the selection that it has used, the act that it undoes, and what else is to be said of it: rows that were
-- refused, left, or no longer fitted.
ALTER TABLE audit_log ADD COLUMN selection UUID, ADD COLUMN undoes BIGINT, ADD COLUMN about JSONB;

-- Each selection is used once, and each act is undone once, whoever tries at the same time.
CREATE UNIQUE INDEX uq_audit_log_selection ON audit_log (selection) WHERE selection IS NOT NULL;
CREATE UNIQUE INDEX uq_audit_log_undoes ON audit_log (undoes) WHERE undoes IS NOT NULL;
