"""Messages that wait leave JetStream's window: a mark in their rows, and an index of those that hold a place."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0107_window"
down_revision = "0106_orphans_and_sequences"
branch_labels = None
depends_on = None

BEFOREHAND = (
    # When a message was acknowledged although it waits: it holds no place of the window any more.
    "ALTER TABLE inbox_messages ADD COLUMN IF NOT EXISTS let_go_at TIMESTAMPTZ",
    # Almost always empty: it has what failed, up to the bound, and what waits for its turn in the order of a key.
    """
    CREATE INDEX IF NOT EXISTS idx_inbox_holding ON inbox_messages (subscription, received_at)
      WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND let_go_at IS NULL
        AND (enqueued_at IS NULL OR next_attempt_at IS NOT NULL)
    """,
)

#: Whether the head of a key holds up what is behind it: it is dead, has failed, or runs for longer than `hangs`.
HELD_UP = """
CREATE FUNCTION relay_is_held_up(
  dead_lettered_at TIMESTAMPTZ, next_attempt_at TIMESTAMPTZ, claimed_until TIMESTAMPTZ, enqueued_at TIMESTAMPTZ,
  hangs INTERVAL
) RETURNS BOOLEAN LANGUAGE sql STABLE PARALLEL SAFE
RETURN num_nonnulls(dead_lettered_at, next_attempt_at) > 0
    OR (claimed_until > now() AND enqueued_at < now() - hangs)
"""


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    op.execute(HELD_UP)


def downgrade() -> None:
    raise NotImplementedError("going back would forget what was acknowledged: restore a backup instead")
