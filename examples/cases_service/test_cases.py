"""The tests of the service, with the fixtures of jetrelay: no servers, and a database in memory.

pytest examples/cases_service
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest
from sqlalchemy import StaticPool, create_engine, select
from sqlalchemy.orm import Session, sessionmaker

from consumer.handlers import Poison
from examples.cases_service.commands import CloseCase, OpenCase, commands
from examples.cases_service.database import confirmations, mapping
from examples.cases_service.domain import Case
from examples.cases_service.publisher import CaseClosedV1, CaseOpenedV1, events
from examples.cases_service.worker import Confirmation, confirm_case
from jetrelay_pytest.outbox import OutboxInMemory
from jetrelay_pytest.tasks import TasksInMemory
from relay import Event, Outbox
from relay.adapters.postgres.units import SqlAlchemyUnits
from relay.bus import Failed, TransactionalCommandBus
from tasks import schedule

HANDLERS = "examples.cases_service.subscriber"


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> sessionmaker[Session]:
    # The subscriber's module reads where its database is, and does not connect: it works in the session it gets.
    monkeypatch.setenv("RELAY_CONFIG", str(Path(__file__).with_name("relay.toml")))
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    mapping.metadata.create_all(engine)
    return sessionmaker(engine)


@pytest.fixture
def bus(sessions: sessionmaker[Session], jetrelay_outbox: OutboxInMemory) -> TransactionalCommandBus[Session]:
    units = SqlAlchemyUnits(sessions, outbox=Outbox("cases"), schedule=schedule)
    return TransactionalCommandBus(commands, units, events)


def account_closed(account: object) -> Event:
    return Event(
        event_type="account_closed", aggregate_type="account", aggregate_id="ann", payload={"account": account}
    )


def test_an_open_case_is_told_and_confirmed(bus, sessions, jetrelay_outbox, jetrelay_tasks: TasksInMemory) -> None:
    case_id = bus.dispatch(OpenCase(account="ann", title="no light")).unwrap()
    told = jetrelay_outbox.assert_published(CaseOpenedV1(case_id=case_id, account="ann", title="no light"))
    task = jetrelay_tasks.assert_scheduled(confirm_case, Confirmation(case_id=case_id))
    assert task.row.correlation_id == told.row.correlation_id

    assert jetrelay_tasks.drain(sessions=sessions) == 1
    with sessions() as session:
        assert session.scalars(select(confirmations.c.case_id)).all() == [case_id]


def test_what_failed_tells_nobody(bus, jetrelay_outbox, jetrelay_tasks) -> None:
    assert isinstance(bus.dispatch(CloseCase(id=uuid4(), reason="it shines")), Failed)
    jetrelay_outbox.assert_nothing_published()
    jetrelay_tasks.assert_nothing_scheduled()


def test_a_closed_account_closes_its_cases(bus, sessions, jetrelay_outbox) -> None:
    opened: list[UUID] = [bus.dispatch(OpenCase(account=it, title="no light")).unwrap() for it in ("ann", "bob")]
    jetrelay_outbox.deliver(HANDLERS, account_closed("ann"), sessions=sessions)
    jetrelay_outbox.assert_published(CaseClosedV1, {"case_id": opened[0], "reason": "the account was closed"})
    with sessions() as session:
        assert [session.get(Case, id).closed_because for id in opened] == ["the account was closed", None]


def test_an_event_of_another_form_is_a_dead_letter(bus, sessions, jetrelay_outbox) -> None:
    with pytest.raises(Poison, match="account_closed v1 does not fit its handler"):
        jetrelay_outbox.deliver(HANDLERS, account_closed(["not", "a", "name"]), sessions=sessions)
    jetrelay_outbox.assert_nothing_published()
