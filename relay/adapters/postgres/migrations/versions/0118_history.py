"""What a context did, by minute and by hour."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import of_file

revision = "0118_history"
down_revision = "0117_inbox_replays"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in of_file("history"):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would forget the history: keep the revision")
