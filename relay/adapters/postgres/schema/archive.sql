-- Archived batches, and the ids of archived messages (DESIGN §2, MicroDAO §17).

-- A row is written in the transaction that deletes the rows of its batch. It says that they are in the archive.
-- deleted_at: no process may use the batch any more. gone_at: its files are deleted, too.
CREATE TABLE archive_batches (
  kind TEXT NOT NULL,
  number BIGINT NOT NULL,
  rows BIGINT NOT NULL,
  size BIGINT NOT NULL,
  sha256 TEXT NOT NULL,
  first_id UUID NOT NULL,
  first_at TIMESTAMPTZ NOT NULL,
  last_id UUID NOT NULL,
  last_at TIMESTAMPTZ NOT NULL,
  archived_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
  announced_at TIMESTAMPTZ,
  deleted_at TIMESTAMPTZ,
  gone_at TIMESTAMPTZ,

  PRIMARY KEY (kind, number),
  CONSTRAINT chk_archive_kind CHECK (kind IN ('outbox', 'inbox', 'tasks'))
);

CREATE INDEX idx_archive_unannounced ON archive_batches (archived_at) WHERE announced_at IS NULL;

-- So that the inbox still recognises them. 75 bytes for a message, with its index, where its row had about 900. Rows
-- are written once.
CREATE TABLE archived_messages (
  message_id UUID PRIMARY KEY,
  batch BIGINT NOT NULL
);
