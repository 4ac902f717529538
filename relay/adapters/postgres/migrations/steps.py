"""What revisions share."""

from __future__ import annotations

from collections.abc import Sequence

from alembic import context, op


def do_beforehand(statements: Sequence[str]) -> None:
    """Run the statements of BEFOREHAND if they have not run: for an empty database, and for printed SQL."""
    if not context.config.attributes.get("prepared"):
        for statement in statements:
            op.execute(statement)
