"""An application's module with cron jobs, for schedulers and workers of a test: effects are rows without a key."""

from __future__ import annotations

import os
from datetime import datetime

import psycopg

from relay.bus import Command, CommandBus, RequestContext
from relay.cron import cron

bus = CommandBus()


class Count(Command[None]):
    """Write one row for the time of the run."""

    at: datetime


@bus.handles(Count)
def count(command: Count) -> None:
    with psycopg.connect(os.environ["RELAY_CONTEXTS__SEA__DATABASE_URL"]) as connection:
        connection.execute(
            "INSERT INTO effects (scheduled_for, correlation_id) VALUES (%s, %s)",
            [command.at, RequestContext.current().correlation_id],
        )


@cron("* * * * * *", bus=bus, context="sea", name="every-second")
def every_second(at: datetime) -> Count:
    return Count(at=at)


@cron("0 0 1 1 *", bus=bus, context="sea", name="yearly")
def yearly(at: datetime) -> Count:
    return Count(at=at)
