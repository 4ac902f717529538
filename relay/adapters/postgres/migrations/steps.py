"""What revisions share."""

from __future__ import annotations

from collections.abc import Sequence

from alembic import context, op


def do_beforehand(statements: Sequence[str]) -> None:
    """Do what was to be done beforehand, if it was not: for an empty database, and in SQL that is printed."""
    if not context.config.attributes.get("prepared"):
        for statement in statements:
            op.execute(statement)
