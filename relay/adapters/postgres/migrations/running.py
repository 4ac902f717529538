"""Applies migrations while producers and workers go on. No step makes them wait for longer than a moment.

Long steps, above all index builds, run beforehand and do not block writers. Steps that block writers are short. If
another session holds the table, such a step gives up its place in the lock queue after 300 ms, because later
writers would wait behind it. It is tried again until it succeeds or ``patience`` ends.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError

from relay.adapters.postgres.sql import statement
from relay.domain.errors import UpgradeBlocked

#: How long one step may be tried, in seconds.
STEP_TIMEOUT_S: Final = 600.0
#: How long a step that blocks others waits for its lock.
_LOCK_TIMEOUT: Final = "300ms"
#: The pause of such a step before its next try, in seconds.
_PAUSE_S: Final = 1.0
#: How often to look whether another upgrade is over, in seconds.
_POLL_INTERVAL_S: Final = 0.1
#: Alembic keeps the running migration in module globals, so only one thread at a time may run it.
ALEMBIC: Final = threading.Lock()
_INDEX: Final = re.compile(r"\s*CREATE(?: UNIQUE)? INDEX IF NOT EXISTS (\w+)")
#: One upgrade of a database at a time. The numbers next to this one are the classes in ``schema/rules.sql``.
_TRY_LOCK: Final = text("SELECT pg_try_advisory_lock(1785882986, 0)")
#: Only if it is missing: to create a schema needs a right that the owner of the tables may not have.
_MAKE_SCHEMA: Final = """
DO $$ DECLARE path CONSTANT TEXT := current_setting('search_path'); BEGIN
  IF current_schema() IS NULL AND path ~ '^[a-z][a-z0-9_]*$' THEN
    EXECUTE 'CREATE SCHEMA ' || quote_ident(path);
  END IF;
END $$
"""
_INVALID: Final = text("SELECT NOT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")


@dataclass(frozen=True, slots=True)
class Runner:
    """Applies revisions over the one connection of ``engine``, which nothing else uses.

    ``waiting`` gets a line of text about what an upgrade waits for. ``patience``: seconds for each step.
    """

    engine: Engine
    waiting: Callable[[str], None]
    patience: float = STEP_TIMEOUT_S

    def lock(self) -> None:
        """Wait until no other process upgrades this database. The lock is held until the connection ends.

        This polls. A process that waited within a statement would hold a snapshot, and the other process's index
        build would wait for it.
        """
        with self._apart() as connection:
            while not connection.scalar(_TRY_LOCK):
                time.sleep(_POLL_INTERVAL_S)

    def make_schema(self) -> None:
        """Create the schema of a context, which its address names as the only one to look for tables in."""
        with self._apart() as connection:
            connection.exec_driver_sql(_MAKE_SCHEMA)

    def prepare(self, statements: Sequence[str]) -> None:
        """Run those statements of a revision beforehand that do not block writers. Raises UpgradeBlocked."""
        for step in statements:
            index = _INDEX.match(step)
            self._persist(lambda: self._build(index[1], step) if index else self._briefly(step))  # noqa: B023

    def apply(self, config: Config, revision: str) -> None:
        """Apply one revision, in a transaction of its own. Raises UpgradeBlocked."""

        def once() -> None:
            with self.engine.begin() as connection, ALEMBIC:
                connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
                config.attributes["connection"] = connection
                command.upgrade(config, revision)

        self._persist(once)

    def _apart(self) -> Connection:
        """Return a connection on which each statement is its own transaction."""
        return self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def _briefly(self, step: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
            connection.exec_driver_sql(step)

    def _build(self, name: str, step: str) -> None:
        """Build an index without blocking writers. First drops an index whose build was interrupted."""
        with self._apart() as connection:
            # No session waits behind it. So it may wait for old transactions to end, and need not start again.
            connection.execute(text(f"SET lock_timeout = '{max(1, round(self.patience))}s'"))
            if connection.scalar(_INVALID, {"name": name}):
                connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY {name}")
            connection.exec_driver_sql(step.replace(" INDEX ", " INDEX CONCURRENTLY ", 1))

    def _persist(self, step: Callable[[], None]) -> None:
        end = time.monotonic() + self.patience
        while True:
            try:
                return step()
            except OperationalError as error:
                if not isinstance(error.orig, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
                    raise
                others = self._others()
                if time.monotonic() + _PAUSE_S > end:
                    raise UpgradeBlocked(
                        f"other sessions kept the tables locked for {self.patience:g} s: {others}",
                        hint="end their transactions, or wait until they end, and run: relay db upgrade",
                    ) from error
            self.waiting(f"waiting for {others}")
            time.sleep(_PAUSE_S)

    def _others(self) -> str:
        """Return the oldest transactions that block the upgrade, without the text of their queries."""
        with self._apart() as connection:
            rows: Sequence[Any] = connection.exec_driver_sql(statement("session/upgrade_blockers")).fetchall()
        return "; ".join(
            f"pid {pid} ({name or 'unnamed'}, {state}, transaction of {age} s)" for pid, name, state, age in rows
        ) or ("a session that has ended by now")


def beforehand(directory: ScriptDirectory, revision: str) -> Sequence[str]:
    """Return the statements that may run before a revision without blocking writers. They are repeatable."""
    script = directory.get_revision(revision)
    found: Sequence[str] = getattr(script.module, "BEFOREHAND", ())
    return found
