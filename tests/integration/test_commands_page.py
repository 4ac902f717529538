"""The page about commands says what is so: its service works as it is printed."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel
from sqlalchemy import CursorResult, delete
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from consumer.handlers import handles
from relay import Outbox
from relay.bus import AggregateRoot, Command, DomainEvent, Nothing, Ok, Query, QueryBus, Some, UnitOfWork
from tasks import task
from tests.integration.publishing import engine_url, outbox_rows, query
from tests.pages import code

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "commands.md").read_text()


class CaseOpened(DomainEvent):
    case_id: UUID
    title: str


class AccountClosed(BaseModel):
    account: str


class Base(DeclarativeBase):
    pass


class Case(AggregateRoot, Base):
    __tablename__ = "cases"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    title: Mapped[str]

    def __init__(self, id: UUID, title: str) -> None:
        self.id, self.title = id, title
        self.record(CaseOpened(case_id=id, title=title))


@task(f"confirm_case_{uuid4().hex}")
def confirm_case(payload: dict[str, UUID], session: Session) -> None: ...


@pytest.fixture
def example(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    for name, members in {
        "myapp": {},
        "myapp.domain": {"Case": Case, "CaseOpened": CaseOpened},
        "myapp.tasks": {"confirm_case": confirm_case},
        "myapp.commands": {},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    block = code("docs/how-to/commands.md", "python", 1)
    block = block.replace("postgresql+psycopg://localhost/cases_db", engine_url(database_url))
    query(database_url, "CREATE TABLE cases (id uuid PRIMARY KEY, title text)")
    exec(compile(block, "commands.md", "exec"), vars(module))
    yield module
    module.engine.dispose()


def run(block: str, **names: object) -> dict[str, Any]:
    """Run a block where these names are known, and return all that it knows afterwards."""
    known = {"__name__": "page", **names}
    exec(compile(block, "page", "exec", dont_inherit=True), known)
    return known


def test_the_example_runs(example: types.ModuleType, database_url: str) -> None:
    match example.bus.dispatch(example.OpenCase(title="twice")):
        case Ok(id):
            pass
        case failed:
            pytest.fail(str(failed))
    rows = query(database_url, "SELECT id, title FROM cases ORDER BY title")
    assert [row["title"] for row in rows] == ["no light", "twice"]
    assert rows[1]["id"] == id
    assert [row["event_type"] for row in outbox_rows(database_url)] == ["case_opened"] * 2
    assert len(query(database_url, "SELECT 1 FROM task_outbox")) == 2


def test_a_command_in_a_handler_of_an_event_commits_with_the_message(
    example: types.ModuleType, database_url: str
) -> None:
    class CloseCasesOfAccount(Command[int]):
        account: str

    @example.commands.handles(CloseCasesOfAccount)
    def close(command: CloseCasesOfAccount, unit: UnitOfWork[Session]) -> int:
        closed = delete(Case).where(Case.title == command.account)
        return cast(CursorResult[Any], unit.session.execute(closed)).rowcount

    names = {"AccountClosed": AccountClosed, "CloseCasesOfAccount": CloseCasesOfAccount}
    block = code("docs/how-to/commands.md", "python", 2)
    handle = run(block, **names, handles=handles, Session=Session, bus=example.bus)["account_closed"]
    for ends in ("rollback", "commit"):
        assert len(query(database_url, "SELECT 1 FROM cases")) == 1, ends
        with Session(example.engine) as session:
            handle(AccountClosed(account="no light"), session)
            getattr(session, ends)()
    assert query(database_url, "SELECT 1 FROM cases") == []


def test_a_command_for_another_service_is_sent_and_executed(example: types.ModuleType, database_url: str) -> None:
    class OpenIteration(Command[None]):
        id: str

    opened: list[str] = []

    @example.commands.handles(OpenIteration)
    def open_iteration(command: OpenIteration, unit: UnitOfWork[Session]) -> None:
        opened.append(command.id)

    shared = run(code("docs/how-to/commands.md", "python", 3))
    with Session(example.engine) as session, session.begin():
        run(code("docs/how-to/commands.md", "python", 4), **shared, outbox=Outbox("cases"), session=session)
    *_, row = outbox_rows(database_url)
    assert (row["topic"], row["payload"]) == ("sr.commands.iteration.start", {"iteration_id": "iter_1"})
    with Session(example.engine) as session, session.begin():
        names = {**shared, "OpenIteration": OpenIteration, "bus": example.bus, "Session": Session}
        executing = run(code("docs/how-to/commands.md", "python", 5), **names, handles=handles)
        executing["start"](shared["StartIteration"](iteration_id="iter_1"), session)
    assert opened == ["iter_1"]


def test_a_query_is_answered_with_something_or_nothing() -> None:
    class FindCase(Query[str]):
        id: int

    queries = QueryBus()
    queries.handles(FindCase)(lambda query: "no light" if query.id == 1 else None)
    names = {"queries": queries, "FindCase": FindCase, "Some": Some, "Nothing": Nothing}
    assert run(code("docs/how-to/commands.md", "python", 6), **names, id=1)["view"] == "no light"
    assert "view" not in run(code("docs/how-to/commands.md", "python", 6), **names, id=2)


def test_the_route_of_the_page_about_http_answers(example: types.ModuleType, database_url: str) -> None:
    client = TestClient(run(code("docs/reference/http-api.md", "python", 1))["app"])
    answer = client.post("/cases", json={"title": "dark"})
    assert answer.status_code == 201
    assert query(database_url, "SELECT title FROM cases WHERE id = %s", answer.json()) == [{"title": "dark"}]
    refused = client.post("/cases", json={"title": ""})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "INVALID_COMMAND")


def test_every_code_of_the_page_exists() -> None:
    errors = (ROOT / "relay" / "domain" / "errors.py").read_text()
    codes = set(re.findall(r"`([A-Z]+_[A-Z_]+)`", PAGE))
    assert {"COMMIT_REFUSED", "NO_HANDLER"} <= codes
    assert [code for code in sorted(codes) if code not in errors] == []
