"""Producers send no hint where the server lets them prepare their transaction."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, of_file

revision = "0110_hints_of_producers"
down_revision = "0109_brake_of_producers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(PIN_SCHEMA)
    for statement in of_file("hints_of_producers"):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would stop transactions that are prepared: restore a backup instead")
