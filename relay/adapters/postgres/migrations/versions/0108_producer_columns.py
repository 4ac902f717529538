"""New rows begin with the engine's defaults, whoever inserts them. Rows of before stay as they are."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, of_file

revision = "0108_producer_columns"
down_revision = "0107_window"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(PIN_SCHEMA)
    for statement in of_file("producer_columns"):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would let producers stop the relay: restore a backup instead")
