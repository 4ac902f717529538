"""Each row keeps notes about its last attempts."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, do_beforehand, of_file

revision = "0120_attempts"
down_revision = "0119_alarms"
branch_labels = None
depends_on = None

BEFOREHAND = (
    "ALTER TABLE inbox_messages ADD COLUMN IF NOT EXISTS attempt_log JSONB",
    "ALTER TABLE task_outbox ADD COLUMN IF NOT EXISTS attempt_log JSONB",
    "ALTER TABLE outbox_events ADD COLUMN IF NOT EXISTS attempt_log JSONB",
)


def upgrade() -> None:
    do_beforehand(BEFOREHAND)
    op.execute(PIN_SCHEMA)
    for statement in of_file("attempts"):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would forget the attempts: restore a backup instead")
