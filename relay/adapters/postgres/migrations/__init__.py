"""Migrations of a context's database: bring it up to date, compare it, print them as SQL.

Alembic does the work. It is configured only here, so an installed wheel needs no configuration file. All functions
take the address that psycopg takes (``postgresql://…``) and block.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, StaticPool, create_engine
from sqlalchemy.exc import InterfaceError, OperationalError, ProgrammingError

from relay.adapters.postgres.failures import reaching, reason
from relay.adapters.postgres.migrations.running import ALEMBIC, STEP_TIMEOUT_S, Runner, beforehand
from relay.adapters.postgres.pool import dial
from relay.adapters.postgres.revisions import FILES, MigrationStatus, compared
from relay.domain.disclosure import first_line
from relay.domain.errors import ConfigurationError, DatabaseUnreachable

VERSION_TABLE: Final = "relay_alembic_version"
_OWNER: Final = "migrations run as a role that may create tables in the first schema of its search_path"


def upgrade(
    url: str,
    revision: str = "head",
    *,
    waiting: Callable[[str], None] = lambda _: None,
    patience: float = STEP_TIMEOUT_S,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    further: Path | None = None,
) -> None:
    """Apply the missing revisions up to ``revision``, each in a transaction of its own.

    Producers and workers may go on meanwhile, also those of the release before. Repeatable, even after a crash in
    the middle. Many processes may start it at once: one works, the others wait and find it done. A database of a
    newer release does not change. An empty database gets everything or nothing. While the upgrade waits for
    others, it calls ``waiting`` with a line of text. It waits up to ``patience`` seconds for each step.
    ``progress`` is called with how many revisions are applied, and of how many. ``further``: a folder of revisions
    that follow ours, for tests of an upgrade to a next release.
    Raises DatabaseUnreachable, UpgradeBlocked when patience ends, ConfigurationError when the role may not, and
    SchemaUnsupported if the database is older than the first release.
    """
    with _connect(url) as engine:
        runner = Runner(engine, waiting, patience)
        runner.lock()
        runner.make_schema()
        with engine.begin() as connection:
            before = _status(connection, further)
        pending = before.pending if revision == "head" else before.pending[: _place(before.pending, revision)]
        progress(0, len(pending))
        if before.current is None:
            runner.apply(_config(further=further), revision)
            return
        directory = ScriptDirectory.from_config(_config(further=further))
        for number, step in enumerate(pending, start=1):
            runner.prepare(beforehand(directory, step))
            runner.apply(_config(prepared=True, further=further), step)
            progress(number, len(pending))


def run(
    url: str,
    statements: Sequence[str],
    *,
    waiting: Callable[[str], None] = lambda _: None,
    patience: float = STEP_TIMEOUT_S,
) -> None:
    """Run repeatable statements as `upgrade` runs a revision: one process at a time, beside producers and workers.

    Each is a transaction of its own, and an index is built without blocking writers. Raises what `upgrade` raises.
    """
    with _connect(url) as engine:
        runner = Runner(engine, waiting, patience)
        runner.lock()
        runner.prepare(statements)


def _place(pending: tuple[str, ...], revision: str) -> int:
    return pending.index(revision) + 1 if revision in pending else 0


def status(url: str) -> MigrationStatus:
    """Compare a database with the migrations of this release; changes nothing.

    Raises DatabaseUnreachable, and SchemaUnsupported if the database is older than the first release.
    """
    with _connect(url) as engine, engine.begin() as connection:
        return _status(connection)


def sql(schema: str | None = None) -> str:
    """Return all migrations as plain SQL for an empty database, for other tools to apply (``psql -f``).

    ``schema``: creates this schema, and puts everything into it.
    """
    output = io.StringIO()
    if schema is not None:
        output.write(f'CREATE SCHEMA IF NOT EXISTS "{schema}";\n\nSET search_path = "{schema}";\n\n')
    with ALEMBIC:
        command.upgrade(_config(output), "head", sql=True)
    return output.getvalue()


def _status(connection: Connection, further: Path | None = None) -> MigrationStatus:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return compared(context.get_current_revision(), further)


@contextmanager
def _connect(url: str) -> Iterator[Engine]:
    """Lend an engine with one connection. psycopg itself reads ``url``, so libpq's full syntax works."""

    def connect() -> psycopg.Connection[Any]:
        with reaching():
            return dial(url, connect_timeout=5, application_name="jetrelay-migrations")

    engine = create_engine("postgresql+psycopg://", creator=connect, poolclass=StaticPool)
    try:
        yield engine
    except (OperationalError, InterfaceError) as error:
        raise DatabaseUnreachable(reason(error)) from error
    except ProgrammingError as error:
        raise ConfigurationError(first_line(error.orig or error), hint=_OWNER) from error
    finally:
        engine.dispose()


def _config(output: io.StringIO | None = None, *, prepared: bool = False, further: Path | None = None) -> Config:
    config = Config(output_buffer=output, attributes={"prepared": prepared})
    config.set_main_option("script_location", "relay.adapters.postgres:migrations")
    config.set_main_option("path_separator", "os")
    if further is not None:
        config.set_main_option("version_locations", os.pathsep.join([str(FILES), str(further)]))
    return config
