"""Only the relay's own sessions pass the brake of a full outbox: by their name, and by their rights."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, of_file

revision = "0109_brake_of_producers"
down_revision = "0108_producer_columns"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(PIN_SCHEMA)
    for statement in of_file("brake_of_producers"):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would let producers pass the brake: restore a backup instead")
