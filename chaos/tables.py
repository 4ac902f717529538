"""The run's own tables. Producers and handlers write them in the same transactions as jetrelay's tables.

No table has a constraint that would help jetrelay keep a promise: an effect that happens twice is there twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from sqlalchemy import MetaData, create_engine
from sqlalchemy.pool import NullPool

from chaos.deployment import CONSUMING, FLEET, PRODUCING, STRANGER
from relay.adapters.postgres.grants import grant
from relay.handler import processed_events_table

_SHOP: Final = """
CREATE TABLE IF NOT EXISTS chaos_keys (key text PRIMARY KEY, n bigint NOT NULL);
CREATE TABLE IF NOT EXISTS chaos_business (
  event_id uuid PRIMARY KEY, key text NOT NULL, place bigint NOT NULL, op bigint NOT NULL
)
"""
_EFFECTS: Final = """
CREATE TABLE IF NOT EXISTS chaos_effects (
  place bigserial NOT NULL, message_id uuid NOT NULL, source text NOT NULL, key text NOT NULL
)
"""
_BESIDE: Final = """
CREATE TABLE IF NOT EXISTS chaos_beside (subscription text NOT NULL, message_id uuid NOT NULL)
"""
_SETTINGS: Final = """
CREATE TABLE IF NOT EXISTS chaos_settings (
  id boolean PRIMARY KEY DEFAULT true CHECK (id),
  seed bigint NOT NULL, hang double precision NOT NULL, history text
)
"""
_CALLS: Final = """
CREATE TABLE IF NOT EXISTS chaos_calls (message_id uuid PRIMARY KEY, calls int NOT NULL DEFAULT 1)
"""
_SETTLE: Final = """
INSERT INTO chaos_settings (seed, hang, history) VALUES (%s, %s, %s)
ON CONFLICT (id) DO UPDATE SET seed = excluded.seed, hang = excluded.hang, history = excluded.history
"""
INSERT_EFFECT: Final = """
INSERT INTO chaos_effects (message_id, source, key) VALUES (%(message_id)s, %(source)s, %(key)s)
"""
READ_SETTINGS: Final = "SELECT seed, hang, history FROM chaos_settings"


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """What Python handlers have to know; they run in jetrelay's workers, which know nothing of the run.

    ``hang``: how long a hanging function hangs, in seconds. ``history``: the directory for records of calls.
    """

    seed: int
    hang: float
    history: str | None

    @classmethod
    def of(cls, row: Any) -> HandlerSettings:
        """Read the row of `READ_SETTINGS`."""
        return cls(*row)


def prepare(
    urls: Mapping[str, str], seed: int, history: Path | None = None, *, hang: timedelta = timedelta(seconds=5)
) -> None:
    """Create the run's tables in the databases ``shop``, ``sea`` and ``cases``. May be called again.

    ``history``: where Python handlers record their calls, nowhere if None. ``hang`` must be longer than the
    handlers' time-out, or nothing would hang. Raises psycopg.Error.
    """
    _execute(urls["shop"], _SHOP)
    _execute(urls["sea"], _EFFECTS)
    _execute(urls["sea"], _BESIDE)
    _execute(urls["sea"], _SETTINGS)
    _execute(urls["sea"], _SETTLE, [seed, hang.total_seconds(), None if history is None else str(history)])
    _execute(urls["cases"], _EFFECTS)
    _execute(urls["cases"], _CALLS)
    _create_processed_events(urls["cases"])


def admit(urls: Mapping[str, str], password: str) -> None:
    """Make the role of workers and schedulers, which may do with our tables what it needs, and all with others.

    It sees what other sessions do, so that `relay doctor` can name them. A second role may INSERT events and
    tasks, in all columns, and nothing else. Raises psycopg.Error.
    """
    with psycopg.connect(urls["shop"], connect_timeout=5, autocommit=True) as owner:
        for role, rights in ((FLEET, "IN ROLE pg_read_all_stats"), (STRANGER, "")):
            if not owner.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).rowcount:
                made = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} {}")
                owner.execute(made.format(sql.Identifier(role), sql.Literal(password), sql.SQL(rights)))
    for context in (PRODUCING, CONSUMING):
        for what in ("TABLES", "SEQUENCES"):
            _execute(urls[context], f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON {what} TO {FLEET}")
        grant(urls[context], [FLEET], [STRANGER])
        _execute(urls[context], f"GRANT INSERT ON outbox_events, task_outbox TO {STRANGER}")


def engine_url(url: str) -> str:
    """The URL of a database as SQLAlchemy wants it."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def _create_processed_events(url: str) -> None:
    """Create the table by which `relay.handler` recognises a repeated message, as a service does that uses it."""
    metadata = MetaData()
    processed_events_table(metadata)
    metadata.create_all(create_engine(engine_url(url), poolclass=NullPool))


def _execute(url: str, statement: str, parameters: list[Any] | None = None) -> None:
    with psycopg.connect(url, connect_timeout=5) as connection:
        connection.execute(statement.encode(), parameters)
