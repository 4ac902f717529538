"""Block 2, the database: tables, the mapping of the aggregate, and its repository.

The outbox, the inbox and the tasks of jetrelay are in the same database: `relay db upgrade` makes their tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from uuid import UUID

from sqlalchemy import Column, ColumnElement, DateTime, Engine, Table, Text, Uuid, create_engine, select
from sqlalchemy.orm import Session, registry

from examples.cases_service.domain import Case, UnknownCase
from relay.bus import UnitOfWork
from relay.settings import load_settings

mapping = registry()

cases = Table(
    "cases",
    mapping.metadata,
    Column("id", Uuid, primary_key=True),
    Column("account", Text, nullable=False, index=True),
    Column("title", Text, nullable=False),
    Column("opened_at", DateTime(timezone=True), nullable=False),
    Column("closed_because", Text),
)
# What the worker has done: one row for each confirmation that was sent.
confirmations = Table("confirmations", mapping.metadata, Column("case_id", Uuid, primary_key=True))

mapping.map_imperatively(Case, cases)


class Cases:
    """The repository: how cases are found and saved. It never commits."""

    def __init__(self, unit: UnitOfWork[Session]) -> None:
        self._unit = unit

    def save(self, case: Case) -> None:
        self._unit.save(case)

    def find(self, id: UUID) -> Case | None:
        return self._unit.session.get(Case, id)

    def get(self, id: UUID) -> Case:
        """Return a case, locked until the transaction ends. Raises UnknownCase."""
        case = self._unit.session.get(Case, id, with_for_update=True)
        if case is None:
            raise UnknownCase(f"there is no case {id}")
        return case

    def open_of(self, account: str) -> Sequence[Case]:
        return self._open(cases.c.account == account)

    def open_since_before(self, time: datetime) -> Sequence[Case]:
        return self._open(cases.c.opened_at < time)

    def _open(self, condition: ColumnElement[bool]) -> Sequence[Case]:
        # In the order of their ids, so that two such transactions cannot lock each other out.
        query = select(Case).where(cases.c.closed_because.is_(None), condition).order_by(cases.c.id)
        return self._unit.session.scalars(query.with_for_update()).all()


@cache
def engine() -> Engine:
    """The service's engine, on the database that relay.toml or the environment names."""
    url = load_settings().contexts["cases"].database_url.get_secret_value()
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1), pool_pre_ping=True)


def create_tables() -> None:
    """Create what is missing. A real service has migrations."""
    mapping.metadata.create_all(engine())
