"""What can be done: each command validates itself, and has one handler. The bus has the transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

from pydantic import Field
from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from examples.cases_service.database import Cases
from examples.cases_service.domain import Case
from relay.bus import Command, CommandBus, UnitOfWork

commands = CommandBus()

Unit = UnitOfWork[Session]
Text = Annotated[str, Field(min_length=1, max_length=200)]


class OpenCase(Command[UUID]):
    """Repeatable: the caller may choose the id."""

    id: UUID = Field(default_factory=uuid7)
    account: Text
    title: Text


class CloseCase(Command[None]):
    id: UUID
    reason: Text


class CloseCasesOfAccount(Command[int]):
    account: Text


class CloseStaleCases(Command[int]):
    older_than_days: Annotated[int, Field(ge=1)]


@commands.handles(OpenCase)
def open_case(command: OpenCase, unit: Unit) -> UUID:
    cases = Cases(unit)
    if cases.find(command.id) is None:
        cases.save(Case(command.id, command.account, command.title))
    return command.id


@commands.handles(CloseCase)
def close_case(command: CloseCase, unit: Unit) -> None:
    cases = Cases(unit)
    case = cases.get(command.id)
    case.close(command.reason)
    cases.save(case)


@commands.handles(CloseCasesOfAccount)
def close_cases_of_account(command: CloseCasesOfAccount, unit: Unit) -> int:
    return _close(Cases(unit), Cases(unit).open_of(command.account), "the account was closed")


@commands.handles(CloseStaleCases)
def close_stale_cases(command: CloseStaleCases, unit: Unit) -> int:
    limit = datetime.now(UTC) - timedelta(days=command.older_than_days)
    return _close(Cases(unit), Cases(unit).open_since_before(limit), "nobody asked any more")


def _close(repository: Cases, found: Sequence[Case], reason: str) -> int:
    for case in found:
        case.close(reason)
        repository.save(case)
    return len(found)
