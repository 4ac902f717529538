"""Where the parts meet: the bus that all entry points use."""

from __future__ import annotations

from examples.cases_service.commands import commands
from examples.cases_service.database import engine
from examples.cases_service.publisher import events
from relay import Outbox
from relay.adapters.postgres.units import SqlAlchemyUnits
from relay.bus import TransactionalCommandBus
from tasks import schedule

bus = TransactionalCommandBus(
    commands, SqlAlchemyUnits(engine(), outbox=Outbox("cases"), schedule=schedule), events
)
