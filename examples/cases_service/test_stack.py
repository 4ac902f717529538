"""The service on real servers: a worker dies where it hurts, and nothing is lost.

pytest examples/cases_service/test_stack.py
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session, sessionmaker

from examples.cases_service import accounts
from examples.cases_service.commands import OpenCase
from examples.cases_service.database import confirmations, mapping
from examples.cases_service.domain import Case
from jetrelay_pytest.stack import Failpoints, Stack


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch, jetrelay_stack: Stack) -> Iterator[sessionmaker[Session]]:
    for name, value in jetrelay_stack.environment.items():
        monkeypatch.setenv(name, value)
    engine = create_engine(jetrelay_stack.url("cases", "psycopg"))
    mapping.metadata.create_all(engine)
    yield sessionmaker(engine)
    engine.dispose()


def told(stack: Stack, context: str, event_type: str, aggregate: object) -> list[bool]:
    """Say of each such event that is committed whether it is published."""
    query = "SELECT published_at IS NOT NULL FROM outbox_events WHERE event_type = %s AND aggregate_id = %s"
    with psycopg.connect(stack.url(context)) as connection:
        return [published for (published,) in connection.execute(query, (event_type, str(aggregate)))]


def reason(sessions: sessionmaker[Session], id: UUID) -> str | None:
    with sessions() as session:
        return session.get(Case, id).closed_because


def is_confirmed(sessions: sessionmaker[Session], id: UUID) -> bool:
    with sessions() as session:
        return session.scalar(select(confirmations.c.case_id).filter_by(case_id=id)) is not None


def test_a_closed_account_closes_its_cases_although_a_worker_dies_before_it_publishes(
    bus, sessions, jetrelay_stack: Stack, jetrelay_failpoints: Failpoints
) -> None:
    jetrelay_stack.start()
    case = bus.dispatch(OpenCase(account="ann", title="no light")).unwrap()
    jetrelay_stack.until("others are told", lambda: told(jetrelay_stack, "cases", "case_opened", case) == [True])
    jetrelay_stack.until("it is confirmed", lambda: is_confirmed(sessions, case))

    jetrelay_failpoints.kill("after_claim")
    accounts.close("ann")
    jetrelay_failpoints.wait()
    assert told(jetrelay_stack, "accounts", "account_closed", "ann") == [False]
    assert reason(sessions, case) is None

    jetrelay_stack.start()
    jetrelay_stack.until("its end is told", lambda: told(jetrelay_stack, "cases", "case_closed", case) == [True])
    assert reason(sessions, case) == "the account was closed"
