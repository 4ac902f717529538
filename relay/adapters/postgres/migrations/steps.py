"""What revisions share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Final

from alembic import context, op

#: Runs before functions are made with ``SET search_path FROM CURRENT``. These then find our tables whatever the
#: producer's search_path. They run as the owner, so they work for a producer that may only INSERT INTO
#: outbox_events.
PIN_SCHEMA: Final = """
DO $$ BEGIN
  PERFORM set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
END $$
"""


def do_beforehand(statements: Sequence[str]) -> None:
    """Run the statements of BEFOREHAND if they have not run: for an empty database, and for printed SQL."""
    if not context.config.attributes.get("prepared"):
        for statement in statements:
            op.execute(statement)


def of_file(name: str) -> Iterator[str]:
    """The statements in ``schema/<name>.sql``, each with the comment above it."""
    text = resources.files("relay.adapters.postgres").joinpath("schema", f"{name}.sql").read_text("utf-8")
    statement = ""
    for part in text.split(";\n"):
        statement += part
        atomic = "BEGIN ATOMIC" in statement and not statement.endswith(";\nEND")
        if atomic or statement.count("$$") % 2:  # inside a function
            statement += ";\n"
        elif statement.strip():
            yield statement.strip()
            statement = ""
