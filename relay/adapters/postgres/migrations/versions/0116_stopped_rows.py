"""Events and messages that an operator has stopped: indexes for them, and no alert about a discarded event."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, do_beforehand, of_file

revision = "0116_stopped_rows"
down_revision = "0115_controls"
branch_labels = None
depends_on = None

# All are empty until an operator stops something: a row costs an entry when it is stopped, none before.
BEFOREHAND = (
    """
    CREATE INDEX IF NOT EXISTS idx_outbox_discarded ON outbox_events (dead_at)
      WHERE dead_at IS NOT NULL AND published_at IS NOT NULL
    """,
    """
    CREATE INDEX IF NOT EXISTS idx_inbox_held ON inbox_messages (subscription, received_at)
      WHERE next_attempt_at = 'infinity' AND processed_at IS NULL
    """,
    """
    CREATE INDEX IF NOT EXISTS idx_inbox_discarded ON inbox_messages (processed_at)
      WHERE processed_at IS NOT NULL AND dead_letter_class = 'discarded'
    """,
)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    op.execute(PIN_SCHEMA)
    for statement in of_file("stopped_rows"):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would hand out what was stopped: restore a backup instead")
