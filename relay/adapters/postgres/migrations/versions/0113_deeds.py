"""An act is bound to the rows that were counted for it, is done once, and can be undone."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, of_file

revision = "0113_deeds"
down_revision = "0112_narrow_inbox"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(PIN_SCHEMA)
    for statement in of_file("deeds"):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would forget which acts were undone: restore a backup instead")
