"""To cancel the events of a key, only these are read, however many others are delayed."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, do_beforehand, of_file

revision = "0137_delayed_of_a_key"
down_revision = "0135_erased_messages"
branch_labels = None
depends_on = None

# An event that is not delayed costs no entry, unless it fails.
BEFOREHAND = (
    """
    CREATE INDEX IF NOT EXISTS idx_outbox_delayed ON outbox_events (hashtext(partition_key))
      WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NOT NULL
    """,
)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    op.execute(PIN_SCHEMA)
    for statement in of_file("cancelling"):
        op.execute(statement.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))


def downgrade() -> None:
    op.execute("DROP INDEX idx_outbox_delayed")
