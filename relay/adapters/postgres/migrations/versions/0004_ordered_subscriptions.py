"""Order per key on the consuming side (DESIGN §6): a row's place among those of its key, and parked keys."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0004_ordered_subscriptions"
down_revision = "0003_processed_events"
branch_labels = None
depends_on = None

# A message of an ordered subscription has a key and a place; all others leave them empty and pay nothing.
# The place is the message's first one: a later copy in the stream must not move it behind later messages.
PLACE = """
ALTER TABLE inbox_messages
  ADD COLUMN IF NOT EXISTS order_key TEXT,
  ADD COLUMN IF NOT EXISTS order_seq BIGINT,
  ADD COLUMN IF NOT EXISTS stepped_over BOOLEAN NOT NULL DEFAULT false
"""

# Rows that hold their key, in order: the first entry of a key is its head.
HEADS = """
CREATE INDEX IF NOT EXISTS idx_inbox_order ON inbox_messages (subscription, order_key, order_seq, message_id)
  WHERE order_key IS NOT NULL AND processed_at IS NULL AND NOT stepped_over
"""

# Up to where everything that was delivered is known to be in the inbox.
WATERMARKS = """
CREATE TABLE inbox_watermarks (
  subscription TEXT NOT NULL,
  stream TEXT NOT NULL,
  consumer_seq BIGINT,
  stream_seq BIGINT NOT NULL DEFAULT 0,
  ahead JSONB NOT NULL DEFAULT '[]',

  PRIMARY KEY (subscription, stream)
)
"""

PARKED = """
CREATE TABLE parked_keys (
  subscription TEXT NOT NULL,
  order_key TEXT NOT NULL,
  parked_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
  message_id UUID NOT NULL,
  reason TEXT NOT NULL,

  PRIMARY KEY (subscription, order_key)
)
"""

BEFOREHAND = (PLACE, HEADS)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    for statement in (WATERMARKS, PARKED):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would let messages overtake each other: restore a backup instead")
