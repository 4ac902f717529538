"""The page about commands says what is so: its service works as it is printed."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from relay.bus import AggregateRoot, DomainEvent, Ok
from tasks import task
from tests.integration.publishing import engine_url, outbox_rows, query

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "commands.md").read_text()


class CaseOpened(DomainEvent):
    case_id: UUID
    title: str


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
    [code, *_] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    code = code.replace("postgresql+psycopg://localhost/cases_db", engine_url(database_url))
    query(database_url, "CREATE TABLE cases (id uuid PRIMARY KEY, title text)")
    exec(compile(code, "commands.md", "exec"), vars(module))
    yield module
    module.engine.dispose()


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


def test_every_code_of_the_page_exists() -> None:
    errors = (Path(__file__).parents[2] / "relay" / "domain" / "errors.py").read_text()
    codes = set(re.findall(r"`([A-Z]+_[A-Z_]+)`", PAGE))
    assert {"COMMIT_REFUSED", "NO_HANDLER"} <= codes
    assert [code for code in sorted(codes) if code not in errors] == []
