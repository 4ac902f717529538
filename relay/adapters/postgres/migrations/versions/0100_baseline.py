"""All tables, indexes, functions and triggers of the first release. They stand in ``postgres/schema``.

Those files do not change after the release: a later change is a revision of its own. Revisions below 0100 were
never released.
"""

from __future__ import annotations

from alembic import op

from relay.adapters.postgres.migrations.steps import PIN_SCHEMA, of_file

revision = "0100_baseline"
down_revision = None
branch_labels = None
depends_on = None

#: A file stands after those whose tables and functions it names.
FILES = (
    "rules",
    "outbox",
    "outbox_locks",
    "inbox",
    "inbox_rules",
    "dead_letters",
    "tasks",
    "wakeup",
    "schedule",
    "archive",
    "shared_database",
)


def upgrade() -> None:
    op.execute(PIN_SCHEMA)
    for name in FILES:
        for statement in of_file(name):
            op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("going back would drop committed events: restore a backup instead")
