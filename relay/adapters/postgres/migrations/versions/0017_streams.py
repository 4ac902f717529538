"""The stream that must store an event, if its producer names one."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import do_beforehand

revision = "0017_streams"
down_revision = "0016_originals"
branch_labels = None
depends_on = None

# Without a default and NULL in most rows: no row is rewritten, and a row without it does not grow.
BEFOREHAND = ("ALTER TABLE outbox_events ADD COLUMN IF NOT EXISTS stream TEXT",)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)


def downgrade() -> None:
    op.execute("ALTER TABLE outbox_events DROP COLUMN stream")
