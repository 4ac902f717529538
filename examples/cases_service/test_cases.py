"""The tests of the service, with the fixtures of jetrelay: no servers, and a database in memory.

pytest examples/cases_service/test_cases.py
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest
from sqlalchemy import StaticPool, create_engine, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from consumer.handlers import Poison
from examples.cases_service.accounts import announce
from examples.cases_service.commands import CloseCase, OpenCase
from examples.cases_service.database import confirmations, mapping
from examples.cases_service.domain import Case
from examples.cases_service.publisher import CaseClosedV1, CaseOpenedV1
from examples.cases_service.worker import Confirmation, confirm_case
from jetrelay_pytest.outbox import OutboxInMemory
from jetrelay_pytest.tasks import TasksInMemory
from relay import RequestContext
from relay.bus import Failed

HANDLERS = "examples.cases_service.subscriber"


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch, jetrelay_outbox: OutboxInMemory) -> sessionmaker[Session]:
    # The subscriber's module reads where its database is, and does not connect: it works in the session it gets.
    monkeypatch.setenv("RELAY_CONFIG", str(Path(__file__).with_name("relay.toml")))
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    mapping.metadata.create_all(engine)
    return sessionmaker(engine)


def reasons(sessions: sessionmaker[Session], ids: list[UUID]) -> list[str | None]:
    with sessions() as session:
        return [session.get(Case, id).closed_because for id in ids]


def test_an_open_case_is_told_and_confirmed(bus, sessions, jetrelay_outbox, jetrelay_tasks: TasksInMemory) -> None:
    case_id = bus.dispatch(OpenCase(account="ann", title="no light")).unwrap()
    told = jetrelay_outbox.assert_published(CaseOpenedV1(case_id=case_id, account="ann", title="no light"))
    task = jetrelay_tasks.assert_scheduled(confirm_case, Confirmation(case_id=case_id))
    assert task.row.correlation_id == told.row.correlation_id

    assert jetrelay_tasks.drain(sessions=sessions) == 1
    with sessions() as session:
        assert session.scalars(select(confirmations.c.case_id)).all() == [case_id]


def test_the_same_case_twice_is_told_and_confirmed_once(bus, jetrelay_outbox, jetrelay_tasks) -> None:
    command = OpenCase(account="ann", title="no light")
    assert bus.dispatch(command).unwrap() == bus.dispatch(command).unwrap()
    jetrelay_outbox.assert_published(CaseOpenedV1)
    jetrelay_tasks.assert_scheduled(confirm_case)


def test_what_failed_tells_nobody(bus, jetrelay_outbox, jetrelay_tasks) -> None:
    assert isinstance(bus.dispatch(CloseCase(id=uuid4(), reason="it shines")), Failed)
    jetrelay_outbox.assert_nothing_published()
    jetrelay_tasks.assert_nothing_scheduled()


def test_a_closed_account_closes_its_cases(bus, sessions, jetrelay_outbox) -> None:
    opened = [bus.dispatch(OpenCase(account=it, title="no light")).unwrap() for it in ("ann", "bob")]
    with sessions.begin() as session, RequestContext.begin().use() as request:
        announce(session, "ann")

    assert jetrelay_outbox.drain(HANDLERS, sessions=sessions) == 1
    jetrelay_outbox.assert_published(
        CaseClosedV1(case_id=opened[0], reason="the account was closed"), correlation_id=request.correlation_id
    )
    assert reasons(sessions, opened) == ["the account was closed", None]
    assert jetrelay_outbox.drain(HANDLERS, sessions=sessions) == 0


def test_an_outage_of_the_database_costs_an_attempt_and_no_event(bus, sessions, jetrelay_outbox) -> None:
    case_id = bus.dispatch(OpenCase(account="ann", title="no light")).unwrap()
    with sessions.begin() as session:
        announce(session, "ann")

    with pytest.raises(OperationalError, match="no such table: cases"):
        jetrelay_outbox.drain(HANDLERS, sessions=sessionmaker(create_engine("sqlite://")))
    jetrelay_outbox.assert_not_published(CaseClosedV1)
    assert jetrelay_outbox.drain(HANDLERS, sessions=sessions) == 1
    jetrelay_outbox.assert_published(CaseClosedV1, aggregate_id=str(case_id))


def test_an_event_of_another_form_is_a_dead_letter(bus, sessions, jetrelay_outbox) -> None:
    with sessions.begin() as session:
        announce(session, ["not", "a", "name"])
    with pytest.raises(Poison, match="account_closed v1 does not fit its handler"):
        jetrelay_outbox.drain(HANDLERS, sessions=sessions)
    jetrelay_outbox.assert_not_published(CaseClosedV1)
