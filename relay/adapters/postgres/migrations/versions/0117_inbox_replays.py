"""Replays of old messages into the inbox of one subscription."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import of_file

revision = "0117_inbox_replays"
down_revision = "0116_stopped_rows"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for statement in of_file("inbox_replays"):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would forget how far replays have come: restore a backup instead")
