"""What can be asked: views for reading, no aggregates and no transaction."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, Field
from sqlalchemy import Select, select

from examples.cases_service.database import cases, engine
from relay.bus import Query, QueryBus

queries = QueryBus()


class CaseView(BaseModel):
    id: UUID
    account: str
    title: str
    closed_because: str | None


class FindCase(Query[CaseView]):
    id: UUID


class CasesOfAccount(Query[list[CaseView]]):
    account: Annotated[str, Field(min_length=1, max_length=200)]


@queries.handles(FindCase)
def find_case(query: FindCase) -> CaseView | None:
    return next(iter(_read(select(cases).where(cases.c.id == query.id))), None)


@queries.handles(CasesOfAccount)
def cases_of_account(query: CasesOfAccount) -> list[CaseView]:
    return _read(select(cases).where(cases.c.account == query.account).order_by(cases.c.id))


def _read(query: Select[Any]) -> list[CaseView]:
    with engine().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        return [CaseView.model_validate(dict(row)) for row in connection.execute(query).mappings()]
