"""What the tests of the service share: its bus, on the database of the file that asks."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session, sessionmaker

from examples.cases_service.commands import commands
from examples.cases_service.publisher import events
from relay import Outbox
from relay.adapters.postgres.units import SqlAlchemyUnits
from relay.bus import TransactionalCommandBus
from tasks import schedule


@pytest.fixture
def bus(sessions: sessionmaker[Session]) -> TransactionalCommandBus[Session]:
    return TransactionalCommandBus(
        commands, SqlAlchemyUnits(sessions, outbox=Outbox("cases"), schedule=schedule), events
    )
