-- The keys of personal values, one at a time for each person. `wrapped` is null once the person is forgotten: the row
-- stays, and says that there was a key.
CREATE TABLE subject_keys (
  id UUID PRIMARY KEY,
  subject TEXT NOT NULL,
  master TEXT NOT NULL,
  wrapped BYTEA,
  created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
  forgotten_at TIMESTAMPTZ,
  CONSTRAINT chk_subject_key_forgotten CHECK ((wrapped IS NULL) = (forgotten_at IS NOT NULL))
);

CREATE UNIQUE INDEX uq_subject_keys_present ON subject_keys (subject) WHERE forgotten_at IS NULL;
CREATE INDEX idx_subject_keys_forgotten ON subject_keys (subject, forgotten_at) WHERE forgotten_at IS NOT NULL;
CREATE INDEX idx_subject_keys_master ON subject_keys (master, id) WHERE forgotten_at IS NULL;
