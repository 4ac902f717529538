"""Events that a stream has and the outbox lost; sequences that are kept above the numbers of their tables."""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, of_file

revision = "0106_orphans_and_sequences"
down_revision = "0105_corrections"
branch_labels = None
depends_on = None

FILES = ("orphans", "sequences")


def upgrade() -> None:
    op.execute(PIN_SCHEMA)
    for name in FILES:
        for statement in of_file(name):
            op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would drop committed events: restore a backup instead")
