"""Alerts: a cause for every final failure, and the conditions that last. They stand in ``schema/alerts.sql``."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, of_file

revision = "0103_alerts"
down_revision = "0102_circuits"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(PIN_SCHEMA)
    for statement in of_file("alerts"):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would drop alerts that nobody has got: restore a backup instead")
