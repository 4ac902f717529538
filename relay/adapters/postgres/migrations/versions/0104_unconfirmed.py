"""Incidents may be unconfirmed: a dead letter came, but no message of the inbox died."""

from __future__ import annotations

from alembic import op

revision = "0104_unconfirmed"
down_revision = "0103_alerts"
branch_labels = None
depends_on = None

# Not validated, which would read the table: the old rule was narrower, so all rows keep the new one.
CLASSES = """
ALTER TABLE dead_letters
  DROP CONSTRAINT chk_dead_letters_class,
  ADD CONSTRAINT chk_dead_letters_class
    CHECK (class IN ('poison', 'deterministic', 'exhausted', 'unconfirmed')) NOT VALID
"""


def upgrade() -> None:
    op.execute(CLASSES)


def downgrade() -> None:
    raise NotImplementedError("going back would drop committed events: restore a backup instead")
