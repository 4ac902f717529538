"""Block 6, the scheduler: by the clock to a command. `python -m scheduler` fires, a worker dispatches."""

from __future__ import annotations

from examples.cases_service.commands import CloseStaleCases
from examples.cases_service.service import bus
from relay.cron import cron


@cron("0 3 * * *", bus=bus, context="cases", name="close_stale_cases")
def close_stale_cases() -> CloseStaleCases:
    return CloseStaleCases(older_than_days=90)
