"""What Alembic runs to reach the database: it uses the given connection, or none when it prints SQL."""

from __future__ import annotations

from alembic import context

from relay.adapters.postgres.migrations import VERSION_TABLE

_URL = "postgresql+psycopg://"  # names the dialect, for SQL that is only printed

connection = context.config.attributes.get("connection")
context.configure(
    connection=connection,
    url=None if connection else _URL,
    version_table=VERSION_TABLE,
    literal_binds=connection is None,
)
with context.begin_transaction():
    context.run_migrations()
