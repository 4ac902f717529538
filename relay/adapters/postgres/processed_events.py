"""`processed_events`: which messages a handler has handled, written in the handler's own transaction.

The row and the effect commit together. So a repeated message finds the row exactly when the effect is committed.
The table is in the database of the handler: a context's database, or a service's.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    TIMESTAMP,
    Column,
    Connection,
    Index,
    MetaData,
    Table,
    Text,
    Uuid,
    delete,
    func,
    literal,
    select,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite

from relay.domain.errors import UnsupportedTarget
from relay.domain.policies import KEEP

_NAME: Final = "processed_events"
_INSERTS: Final = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


class Claim(Enum):
    """The result of a claim: this caller handles the message, it was handled before, or another handles it now."""

    OURS = "ours"
    REPEATED = "repeated"
    BUSY = "busy"


def processed_events_table(metadata: MetaData) -> Table:
    """Return the table in ``metadata``, for a service with its own migrations. The first call creates it.

    Let Alembic compare it, or call ``metadata.create_all``. Primary key: handler name and message id.
    """
    if (known := metadata.tables.get(f"{metadata.schema}.{_NAME}" if metadata.schema else _NAME)) is not None:
        return known
    now = func.now()
    table = Table(
        _NAME,
        metadata,
        Column("handler", Text, primary_key=True),
        Column("message_id", Uuid, primary_key=True),
        Column("processed_at", TIMESTAMP(timezone=True), nullable=False, server_default=now),
    )
    Index("idx_processed_events_age", table.c.processed_at)
    return table


def claim(connection: Connection, table: Table, handler: str, message_id: UUID) -> Claim:
    """Insert the row in the open transaction of ``connection``, unless it exists or another transaction adds it.

    BUSY: another transaction handles the message now. This does not wait for it: if that one hangs, waiting calls
    would use up all connections of the service. Raises UnsupportedTarget for other databases than
    PostgreSQL (and SQLite, for a service's tests).
    """
    dialect = connection.dialect.name
    if dialect not in _INSERTS:
        raise UnsupportedTarget(f"{dialect} is not supported", field="engine", hint="PostgreSQL is")
    free = func.pg_try_advisory_xact_lock(_lock(handler, message_id)) if dialect == "postgresql" else true()
    row = select(literal(handler, Text), literal(message_id, Uuid)).where(free)
    insert: Any = _INSERTS[dialect](table).from_select(["handler", "message_id"], row)
    if connection.execute(insert.on_conflict_do_nothing().returning(table.c.message_id)).first():
        return Claim.OURS
    known = select(table.c.message_id).where(table.c.handler == handler, table.c.message_id == message_id)
    return Claim.REPEATED if connection.execute(known).first() else Claim.BUSY


def prune(connection: Connection, table: Table, keep: timedelta = KEEP) -> int:
    """Delete rows of messages handled longer than ``keep`` ago; returns how many. The caller commits.

    A message that arrives again after that is handled again. So ``keep`` must be longer than the age of any event
    that is replayed.
    """
    return connection.execute(delete(table).where(table.c.processed_at < datetime.now(UTC) - keep)).rowcount


def _lock(handler: str, message_id: UUID) -> int:
    digest = hashlib.blake2b(f"{handler}\0{message_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
