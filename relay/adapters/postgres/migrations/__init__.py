"""Migrations of a context's database: bring it up to date, compare it, print them as SQL.

Alembic does the work, configured here and nowhere else, so that an installed wheel needs no file of its
own. All functions take the address that psycopg takes (``postgresql://…``) and block.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, NullPool, create_engine, text
from sqlalchemy.exc import InterfaceError, OperationalError, ProgrammingError

from relay.adapters.postgres.unreachable import reaching, reason
from relay.domain.disclosure import first_line
from relay.domain.errors import ConfigurationError, DatabaseUnreachable

VERSION_TABLE: Final = "relay_alembic_version"
#: One upgrade of a database at a time; the neighbours of this number are the locks of the outbox.
_LOCK: Final = text("SELECT pg_advisory_xact_lock(1785882986, 0)")
#: Alembic keeps the running migration in module globals, so threads must not upgrade side by side either.
_ALEMBIC: Final = threading.Lock()
_OWNER: Final = "migrations run as a role that may create tables in the first schema of its search_path"


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """The revision a database is at, the newest one, and those it lacks, oldest first.

    ``current`` is None in a database without our tables. A revision this release does not know was made
    by a newer one: then nothing is pending.
    """

    current: str | None
    head: str
    pending: tuple[str, ...]


def upgrade(url: str, revision: str = "head") -> None:
    """Apply what is missing up to ``revision``, all of it or nothing, in one transaction.

    Repeatable, and safe to start from many processes at once: one works, the others wait and find it
    done. A database of a newer release is left as it is. Raises DatabaseUnreachable, and
    ConfigurationError when the role may not do it.
    """
    with _ALEMBIC, _connect(url) as connection:
        connection.execute(_LOCK)
        if revision == "head" and not _status(connection).pending:
            return
        command.upgrade(_config(connection=connection), revision)


def status(url: str) -> MigrationStatus:
    """Compare a database with the migrations of this release; changes nothing. Raises DatabaseUnreachable."""
    with _connect(url) as connection:
        return _status(connection)


def sql() -> str:
    """All migrations as plain SQL for an empty database, for other tools to apply (``psql -f``)."""
    output = io.StringIO()
    with _ALEMBIC:
        command.upgrade(_config(output), "head", sql=True)
    return output.getvalue()


def _status(connection: Connection) -> MigrationStatus:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    current = context.get_current_revision()
    known = [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()][::-1]
    done = 0 if current is None else known.index(current) + 1 if current in known else len(known)
    return MigrationStatus(current, known[-1], tuple(known[done:]))


@contextmanager
def _connect(url: str) -> Iterator[Connection]:
    """Open a transaction that commits at the end. psycopg itself reads ``url``, so libpq's full syntax holds."""

    def connect() -> psycopg.Connection[Any]:
        with reaching():
            return psycopg.connect(url, connect_timeout=5, application_name="jetrelay-migrations")

    engine = create_engine("postgresql+psycopg://", creator=connect, poolclass=NullPool)
    try:
        with engine.begin() as connection:
            yield connection
    except (OperationalError, InterfaceError) as error:
        raise DatabaseUnreachable(reason(error)) from error
    except ProgrammingError as error:
        raise ConfigurationError(first_line(error.orig or error), hint=_OWNER) from error


def _config(output: io.StringIO | None = None, connection: Connection | None = None) -> Config:
    config = Config(output_buffer=output, attributes={"connection": connection})
    config.set_main_option("script_location", "relay.adapters.postgres:migrations")
    config.set_main_option("path_separator", "os")
    return config
