"""``python -m scheduler``: run any number of these; one is enough, two survive the loss of one."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from datetime import UTC
from functools import partial
from typing import Final
from uuid import uuid4

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from relay.adapters.dramatiq.broker import RelayBroker
from relay.adapters.dramatiq.runtime import use_uvloop
from relay.adapters.postgres.schedule import PostgresLease, PostgresSchedule
from relay.bootstrap import Application, job_broker
from relay.concurrency import end
from relay.cron import Cron, load_crons
from relay.domain.errors import RelayError
from relay.monitoring import scheduler_metrics
from relay.settings import Settings, load_settings
from relay.telemetry.logs import LogFacts, configure
from scheduler.crons import EVERY, CronTick
from scheduler.leader import Leader, Lease
from scheduler.polls import Sender
from scheduler.samples import Samples
from scheduler.ticks import Tick, ticks
from scheduler.timer import IntervalTimer

_log = logging.getLogger("relay.scheduler")

#: The holder of a lease: it is unique to this process. A process number would be used again.
_HOLDER: Final = uuid4()
_WHO: Final = f"{socket.gethostname()}:{os.getpid()}"


def main() -> int:
    """Parse the command line, run until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m scheduler",
        description="Enqueues the fleet's jobs: publish, pull, sweep. Sends alerts. "
        "Reads relay.toml and RELAY_* variables.",
    )
    parser.add_argument("--list", action="store_true", help="print the jobs and their intervals, then exit")
    arguments = parser.parse_args()
    try:
        settings = load_settings()
        crons = load_crons(settings.user_modules, settings.contexts)
        configure(settings.log_level, settings.log_format)
        if arguments.list:
            asyncio.run(_list(settings, crons))
        else:
            use_uvloop()
            asyncio.run(run(settings, crons))
    except RelayError as error:
        sys.stderr.write(f"error {error}\n")
        return 1
    return 0


async def _list(settings: Settings, crons: dict[str, list[Cron]]) -> None:
    application, broker = _connected(settings)
    for context in settings.contexts:
        for entry in ticks(application, broker, context):
            sys.stdout.write(f"{entry.name:<50} every {entry.every.total_seconds():g} s\n")
        for job in crons[context]:
            sys.stdout.write(f"{job.name:<50} {job.expression}\n")


async def run(settings: Settings, crons: dict[str, list[Cron]]) -> None:
    """Start the application, and lead every context whose lease is free; stop cleanly on a signal.

    Raises MissingExtraError.
    """
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    application, broker = _connected(settings)
    jobs = {name: [job.name for job in its] for name, its in crons.items()}
    for listener in (LogFacts(), *scheduler_metrics(settings, jobs, Samples(application).ask)):
        application.facts.listen(listener)
    await application.start()
    engine = AsyncIOScheduler(timezone=UTC)
    engine.start()
    leaders = list(_leaders(application, broker, IntervalTimer(engine), crons))
    keepers = [asyncio.create_task(leader.run()) for leader in leaders]
    _log.info("scheduler started: %d contexts, as %s", len(leaders), _WHO)
    await stop.wait()
    await asyncio.gather(*map(end, keepers))
    # Let running ticks finish. A plain shutdown would cancel them in the middle of a query.
    await asyncio.gather(*(leader.stop() for leader in leaders))
    engine.shutdown(wait=False)
    await application.stop()


def _connected(settings: Settings) -> tuple[Application, RelayBroker]:
    return Application(settings, role="scheduler"), job_broker(settings)


def _leaders(
    application: Application, broker: RelayBroker, timer: IntervalTimer, crons: dict[str, list[Cron]]
) -> Iterator[Leader]:
    send = Sender(application, broker)
    for name in application.settings.contexts:
        context = application.context(name)
        store, records = PostgresLease(context.wakeup.lend, _HOLDER, _WHO), PostgresSchedule(context.wakeup.lend)
        tick = CronTick(name, crons[name], store, records, partial(send.runs, name), application.facts)
        table = [*ticks(application, broker, name)]
        if tick.jobs:
            table.append(Tick(f"crons:{name}", EVERY, tick.tick, tick.forget))
        lease = Lease(store, application.settings.scheduler_lease)
        yield Leader(name, table, tick, lease, records, timer, application.facts, release=context.wakeup.close)


if __name__ == "__main__":
    sys.exit(main())
